// list.c - reads the strategies of a run: those of --strategies, or of the search for a layout.
#include "run/slow/balance.h"
#include "run/strategies/strategies.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"

// Reads a file if there is one of this name, else the list itself.
static int read_list(StrategyList* list, const char* named, Err err) {
    enum { MOST = 1 << 16 };
    size_t n = strlen(named);
    if (access(named, R_OK)) return strategies_parse(list, named, n, err);
    char words[ERR_BYTES], *text = disk_read_file(named, MOST, &n, err);
    if (!text) return -1;
    int failed = strategies_parse(list, text, n, words);
    free(text);
    return failed ? fail(err, "%s: %s", named, words) : 0;
}

void strategies_refuse_others(const Run* run) {
    const Config* c = &run->config;
    int names_layout = c->layout && strcmp(c->layout, "hydraulis") != 0;
    const char* found = names_layout ? "--layout" : run->settled.tp > 1 ? "--tp" : "--pp";
    if (run->settled.tp > 1 || run->settled.pp > 1 || (c->layout && !strcmp(c->layout, "auto")))
        die("--strategies: expected beside it at most a --layout of tp 1 and one stage, which says how layers run, "
            "found %s; write who runs them into the strategies",
            found);
    if (!strcmp(c->balance, "resize") || !strcmp(c->balance, "semi"))
        die("--strategies: expected --balance documents or migrate, found %s: a rank leaves out a share of one part of "
            "the model, and its part is another from step to step",
            c->balance);
}

// Checks that every group of every strategy has the like pipelines that --cp wants to share a document.
static void check_cp_size(const StrategyList* list, int cp_size) {
    char text[STRATEGY_TEXT];
    for (int s = 0; s < list->n; s++)
        for (int g = 0; g < list->strategy[s].n; g++)
            if (list->strategy[s].group[g].copies < cp_size)
                die("--strategies: %s: expected at least %d like pipelines for --cp %d, found %d; leave --cp out",
                    strategy_print(&list->strategy[s], text), cp_size, cp_size, list->strategy[s].group[g].copies);
}

// Keeps the list as it could be typed, to save it with the run: a file may change, and a search find another.
static void keep_list(Run* run) {
    const Strategies* x = run->strategies;
    char* text = config_string(&run->config, (size_t)x->list.n * (STRATEGY_TEXT + 2) + 1);
    size_t n = 0;
    if (!text) die("no memory for the text of %d strategies", x->list.n);
    for (int s = 0; s < x->list.n; s++) n += (size_t)sprintf(text + n, "%s%s", s ? "; " : "", x->name[s]);
    run->settled.strategies = text;
}

void strategies_read(Run* run) {
    char err[ERR_BYTES];
    const Model* m = &run->model;
    struct Read {
        int failed;
        StrategyList list;
        char words[ERR_BYTES];
    } found;
    const char* named = run->settled.strategies;
    if (!named || !strcmp(named, "none") || !run->training) return;
    if (named == run->config.strategies) strategies_refuse_others(run);  // else the search for a layout found it
    memset(&found, 0, sizeof found);
    if (m->world->rank == 0) found.failed = read_list(&found.list, named, found.words);
    run_tell_all(m->world, &found, sizeof found);
    if (found.failed) die("--strategies: %s", found.words);
    if (strategies_check(&found.list, &m->whole, m->world->size, err))
        die("--strategies: %s; --strategies none goes on without", err);
    check_cp_size(&found.list, run->config.cp_size);
    run->strategies = (Strategies*)calloc(1, sizeof *run->strategies);
    if (!run->strategies) die("no memory for %d strategies", found.list.n);
    run->strategies->list = found.list;
    for (int s = 0; s < found.list.n; s++) strategy_print(&found.list.strategy[s], run->strategies->name[s]);
    keep_list(run);
}
