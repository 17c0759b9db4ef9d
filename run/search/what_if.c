// what_if.c - clusters side by side; see what_if.h.
#include "run/search/what_if.h"
#include "run/setup/setup.h"

#include <math.h>
#include <stdlib.h>

// ---- one machine

// Returns the most bytes of a rank: by --memory, by the machine's kinds of ranks, or by the machine. 0: not known.
static double room_of(const Machine* m, const Config* c, double times) {
    double most = m->n_kinds && m->kind_first[0] == 0 ? 0 : m->device_gib;
    for (int k = 0; k < m->n_kinds; k++) most = fmax(most, m->kind_gib[k] > 0 ? m->kind_gib[k] : m->device_gib);
    return c->memory > 0 ? times * c->memory : most * (1 << 30);
}

static double sum_of_paces(const Machine* m, int ranks) {
    double sum = 0;
    for (int r = 0; r < ranks; r++) sum += machine_speed(m, r, 1);
    return sum;
}

static double limit_ms(const Machine* m, const SampledSteps* steps, int ranks) {
    double work = 0;
    for (int i = 0; i < steps->first[steps->n]; i++) {
        double s = steps->lengths[i];
        work += m->cost.quadratic * s * s + m->cost.per_token * s;
    }
    return work / steps->n / sum_of_paces(m, ranks);
}

static void divide_time(WhatIf* x, const Recommended* r, int ranks) {
    const double* t = r->best.terms;
    double computed = t[TERM_MATMULS] + t[TERM_ATTENTION], limit = limit_ms(&r->costs->machine, r->steps, ranks);
    x->limit = limit, x->part[PART_COMPUTING] = fmin(computed, limit);
    x->part[PART_LINKS] = t[TERM_TENSOR] + t[TERM_SEQUENCE] + t[TERM_ROUNDS] + t[TERM_STEP];
    x->part[PART_AGAIN] = t[TERM_AGAIN], x->part[PART_STAGES] = t[TERM_STAGES];
    x->part[PART_FIXED] = t[TERM_MICRO_BATCH];
    x->part[PART_UNEVEN] = computed - x->part[PART_COMPUTING];
}

static Recommended* recommend(Run* run, const Machine* machine, double times, const char* what) {
    static Recommended found;
    run->cluster->available = (HostMemory){(size_t)room_of(machine, &run->config, times), "of a rank"};
    run_recommend(&found, run, machine, what);
    return &found;
}

// Returns the share of time that the best layout of the changed machine wins, at least 0: the layout that was found
// before may still be better, because a search looks at a part of all. NaN: there is nothing to change.
static double gain_of(const WhatIf* x, Run* run, const Machine* machine, Change change) {
    static const char* const words[N_CHANGES] = {"links of twice the bytes", "twice the memory", "no slow ranks"};
    Machine other = *machine;
    char what[2 * COST_NAME];
    int ranks = run->model.world->size;
    if (change == CHANGE_LINKS) other = machine_with_links(machine, 2);
    if (change == CHANGE_MEMORY) other = machine_with_memory(machine, 2);
    if (change == CHANGE_PACE) other = machine_with_full_pace(machine, -1);
    if (change == CHANGE_PACE && sum_of_paces(&other, ranks) == sum_of_paces(machine, ranks)) return NAN;
    snprintf(what, sizeof what, "of %s, %s", x->name, words[change]);
    double ms = recommend(run, &other, change == CHANGE_MEMORY ? 2 : 1, what)->best.ms;
    return ms == INFINITY ? 0 : x->ms == INFINITY ? 1 : fmax(0, 1 - ms / x->ms);
}

// Names the bound of a step: the change that would win most, or uneven documents, stages or fixed costs if they take
// more. Below a twentieth of the step it is computing.
static const char* bound_of(const WhatIf* x) {
    static const char* const parts[N_PARTS] = {
        [PART_UNEVEN] = "documents", [PART_STAGES] = "stages", [PART_FIXED] = "fixed costs"};
    static const char* const words[N_CHANGES] = {"links", "memory", "slow ranks"};
    const char* bound = "computing";
    double most = 0.05;
    for (int i = 0; i < N_PARTS; i++)
        if (parts[i] && x->part[i] > most * x->ms) bound = parts[i], most = x->part[i] / x->ms;
    for (int i = 0; i < N_CHANGES; i++)
        if (x->gain[i] > most) bound = words[i], most = x->gain[i];
    return bound;
}

// Returns the seconds of a save, which copies the optimizer's state, 12 bytes a parameter over the ranks, and on rank 0
// the weights (run/files/save.c).
static double save_seconds(const Run* run, const Machine* machine) {
    double of_parameter = 12.0 / run->model.world->size + (double)dtype_bytes(run->model.dt);
    return of_parameter * (double)shape_param_count(&run->model.whole) / machine->save_gbps / 1e9;
}

static void find_goodput(WhatIf* x, const Run* run, const Machine* machine) {
    const Config* c = &run->config;
    if (c->mtbf <= 0 || x->ms == INFINITY) return;
    if (machine->save_gbps <= 0)
        die("--mtbf: nothing says what a save takes on %s; add to its file: device GIB GB/S", x->name);
    x->save = save_seconds(run, machine);
    x->goodput = goodput_best(c->ranks, c->mtbf, x->ms / 1e3, x->save, c->restart_seconds);
}

static void ask(WhatIf* x, Run* run, const char* name, double price) {
    static Machine machine;
    char err[ERR_BYTES], what[2 * COST_NAME];
    const char* slash = strrchr(name, '/');
    if (run_machine_named(run, &machine, name, err)) die("%s", err);
    *x = (WhatIf){.room = room_of(&machine, &run->config, 1), .price = price};
    snprintf(x->name, sizeof x->name, "%s", slash ? slash + 1 : name);
    if (x->room <= 0)
        die("what-if: nothing says what memory a rank of %s has; try --memory 40G, or in its file: device 40 0", name);
    snprintf(what, sizeof what, "of %s", x->name);
    const Recommended* r = recommend(run, &machine, 1, what);
    x->ms = r->best.ms, x->bytes = r->best.bytes, x->tokens = r->costs->tokens;
    x->layout = r->best.layout, x->N = r->best.N;
    snprintf(x->words, sizeof x->words, "%s", r->words + (strncmp(r->words, "auto: ", 6) ? 0 : 6));
    divide_time(x, r, run->model.world->size);
    for (int i = 0; i < N_CHANGES; i++) x->gain[i] = gain_of(x, run, &machine, (Change)i);
    x->bound = bound_of(x);
    find_goodput(x, run, &machine);
}

// ---- all of them

// Reads prices (n), as many as machines, or none: then they are NaN.
static void read_prices(double* prices, const char* text, int n) {
    int i = 0;
    for (int k = 0; k < n; k++) prices[k] = NAN;
    for (const char* at = text; at; i++) {
        char* end;
        double price = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(price >= 0) || price > 1e9)
            die("--price expects numbers with commas between them, as 2.5,4, found \"%s\"", text);
        if (i < n) prices[i] = price;
        at = *end ? end + 1 : NULL;
    }
    if (text && i != n) die("--price expects a number for each --machine, %d, found %d in \"%s\"", n, i, text);
}

void what_if(Run* run) {
    static WhatIf clusters[MAX_PATHS];
    const Config* c = &run->config;
    double prices[MAX_PATHS];
    int n = c->machines.n;
    char err[ERR_BYTES];
    if (n == 0) die("what-if expects machines, found none; try --machine a100-7b h200-8b, or a file");
    if (!*c->what_if && !config_was_given(c, "--ranks"))
        die("what-if expects --ranks N, the ranks of the cluster, found none; try --ranks 64");
    if (!*c->what_if && (c->layout || c->strategies))
        die("what-if looks for the layout, found %s; leave it out", c->layout ? "--layout" : "--strategies");
    WhatIfs all = {.run = run, .ranks = c->ranks, .cluster = clusters};
    read_prices(prices, c->price, n);
    if (*c->what_if) {
        static Machine machine;
        if (run_machine_named(run, &machine, c->machine, err)) die("%s", err);
        what_if_replay(&all, run, &machine);
    } else
        for (; all.n < n; all.n++) ask(&clusters[all.n], run, c->machines.paths[all.n], prices[all.n]);
    if (progress_is_terminal()) progress_print("", 1);
    what_if_show(&all);
}
