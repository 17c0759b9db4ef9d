// give_up.c - a rank so slow that the others are faster without its node: --give-up-below F,refreshes=M.
//
// A rank's pace is the multiply-adds of its linears' matmuls over the time that they took, summed up between two
// refreshes, over the median of all ranks. Once it was below F at M refreshes in a row, rank 0 asks the search for
// layouts for two times of a step: of the layout at work with this pace, and of the best one on the ranks of all other
// nodes (on a single node: all other ranks). If the second is less, the run saves and ends with status GIVEN_UP, by
// which scripts/keep_going.sh leaves the node out.
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "run/setup/setup.h"

typedef struct RankWork {
    double work, ms;
} RankWork;

static struct GiveUp {
    RankWork mine;
    int* slow;  // (ranks) slow refreshes in a row
} give_up;

static int is_on(const Run* run) { return run->config.give_up_below > 0 && run->model.world->size > 1; }

void give_up_open(Run* run) {
    const Config* c = &run->config;
    int mode = config_choice(c, "--balance");
    if (!is_on(run)) return;
    if (c->strategies || !c->refresh || mode > 1)
        die("--give-up-below: paces are told apart with --balance off or documents, --plan refresh above 0, and "
            "without "
            "--strategies; found --balance %s, refresh=%d%s",
            c->balance, c->refresh, c->strategies ? ", --strategies" : "");
    give_up.slow = (int*)calloc((size_t)run->model.world->size, sizeof *give_up.slow);
    if (!give_up.slow) die("no memory for the paces of %d ranks", run->model.world->size);
}

// Returns the number of weights of linears that this rank multiplies a token by.
static double weights_of(const Model* m) {
    Shape base = shape_base(&m->shape);
    double sum = 0;
    for (int i = 0; i < shape_tensors(&base); i++) {
        ParamTensor t = shape_tensor(&base, i);
        if (param_is_matrix(t.id) && param_is_per_layer(t.id)) sum += (double)t.elems;
    }
    return sum + (m->stage == m->stages - 1 ? (double)m->shape.vocab_rows * m->shape.C : 0);
}

typedef struct RankHome {
    int process;
    char host[64];
} RankHome;

static Comm others_of(const Comm* c, int rank, int* node) {
    Comm rest = *c;
    int nodes = c->node[c->size - 1] + 1;
    rest.size = rest.rank = 0, rest.node = node;
    for (int r = 0; r < c->size; r++)
        if (nodes > 1 ? c->node[r] != c->node[rank] : r != rank)
            node[rest.size++] = c->node[r] - (nodes > 1 && c->node[r] > c->node[rank]);
    return rest;
}

// Returns 1 if the others are faster without this rank. All ranks call it.
static int ask(Run* run, int rank, double pace) {
    Comm* c = run->model.world;
    int* node = (int*)calloc((size_t)c->size, sizeof *node);
    struct {
        double ms[2];
        int failed, ranks;
        char words[ERR_BYTES];
    } answer = {.failed = !node};
    RankHome mine = {(int)getpid(), ""};
    gethostname(mine.host, sizeof mine.host - 1);
    RankHome* homes = (RankHome*)run_ask_all(run, c, &mine, sizeof mine);
    if (c->rank == 0 && node) {
        Comm rest = others_of(c, rank, node);
        answer.ranks = rest.size;
        answer.failed = rest.size == 0 || run_layout_without(answer.ms, run, rank, pace, &rest, answer.words);
    }
    run_tell_all(c, &answer, sizeof answer);
    int is_slower = !answer.failed && answer.ms[1] < answer.ms[0];
    if (c->rank == 0) {
        char members[256];
        snprintf(members, sizeof members,
                 ", \"rank\": %d, \"pace\": %.4g, \"ms\": %.6g, \"ranks_without\": %d, \"ms_without\": %.6g", rank,
                 pace, answer.ms[0], answer.ranks, answer.failed ? 0 : answer.ms[1]);
        runlog_event(&run->books->log, "slow rank", run->state.step, members);
        warn(
            "rank %d (process %d of node %s) is %s: it computes at %.2f of the others' pace; a step should take %.4g "
            "ms with it, %.4g ms on %d rank%s without%s%s",
            rank, homes[rank].process, homes[rank].host, is_slower ? "given up" : "slow, and stays", pace, answer.ms[0],
            answer.ms[1], answer.ranks, answer.ranks == 1 ? "" : "s", answer.failed ? ": " : "",
            answer.failed ? answer.words : "");
    }
    free(homes);
    free(node);
    return is_slower;
}

static void look(Run* run, const RankWork* all) {
    int size = run->model.world->size, asked = -1;
    double *paces = (double*)calloc(2 * (size_t)size, sizeof *paces), *sorted = paces + size;
    if (!paces) return;
    for (int r = 0; r < size; r++) sorted[r] = paces[r] = all[r].ms > 0 ? all[r].work / all[r].ms : INFINITY;
    run_median(sorted, size);
    double usual = sorted[size / 2];  // the faster of the middle two: of two ranks one may be slow
    for (int r = 0; r < size; r++) {
        int is_slow = paces[r] < run->config.give_up_below * usual;
        give_up.slow[r] = is_slow ? give_up.slow[r] + 1 : 0;
        if (give_up.slow[r] == run->config.give_up_refreshes && (asked < 0 || paces[r] < paces[asked])) asked = r;
    }
    if (asked >= 0 && ask(run, asked, paces[asked] / usual)) run->cluster->given_up = 1;
    free(paces);
}

void give_up_hear(Run* run) {
    const RankReport* report = &run->cluster->report;
    if (!is_on(run) || run->left || run->state.step == run->books->first_step + 1) return;  // the first is slow
    if (report->linear > 0) give_up.mine.work += weights_of(&run->model) * run->batch.n_read;
    give_up.mine.ms += report->linear;
    if (run->state.step % run->config.refresh) return;
    RankWork* all = (RankWork*)run_ask_all(run, run->model.world, &give_up.mine, sizeof give_up.mine);
    look(run, all);
    free(all);
    give_up.mine = (RankWork){0};
}
