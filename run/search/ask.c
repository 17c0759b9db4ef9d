// ask.c - opens a run as far as a search needs it: options, documents and the model's shape, but no ranks.
#include <stdio.h>
#include <stdlib.h>

#include "run/search/search.h"
#include "run/search/what_if.h"
#include "run/files/saving.h"
#include "run/setup/setup.h"

// Shows the run a cluster of --ranks and --plan node-size, which nobody has started.
static void view_cluster(Run* run) {
    static Comm world;
    int ranks = run->config.ranks, of_node = run->config.node_size ? run->config.node_size : 8;
    world = (Comm){.name = "none", .size = ranks, .local_size = of_node};
    world.node = (int*)calloc((size_t)ranks, sizeof(int));
    if (!world.node) die("no memory for %d ranks", ranks);
    for (int r = 0; r < ranks; r++) world.node[r] = r / of_node;
    run->model.world = run->model.job = run->model.comm = &world;
}

// Turns the command's word into an option of the table, or drops it.
static void take_words(Run* run, int argc, char** argv) {
    int asks = !strcmp(argv[1], "what-if");
    run->argc = asks ? argc : argc - 1, run->argv = asks ? argv : argv + 1;
    argv[1] = asks ? (char*)"--what-if" : argv[0];
}

int search_main(int argc, char** argv) {
    static Run run;
    static RunParts parts;
    static RunView as;
    char err[ERR_BYTES];
    run.began = now_seconds(), run.ranks = &run_ranks;
    run_attach(&run, &parts);
    run.cluster->identity = (RankIdentity){.size = 1, .source = "alone"};
    run.cluster->searches = 1;
    take_words(&run, argc, argv);
    run_read_options(&run);
    if (run.config.what_if) what_if_read(&run);
    run_open_ranks(&run);
    run_find_origin(&run);
    run_open_data(&run);
    run_settle_model(&run);
    run_view(&as, &run);
    view_cluster(&as.run);
    if (run.config.what_if) what_if(&as.run);
    else if (search_layout(&as.run, err)) die("%s", err);
    end_output();
    return 0;
}
