// logged_steps.c - simulate what-if RUN: draws the logged steps of a run again from its documents (data/sampler.h: an
// epoch's order is a pure function of seed and epoch), and plays them on the clock under its layout. Then it plays them
// without the slowness of each of its slow ranks, and by the plans of others.
#define _GNU_SOURCE  // getline
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/base/disk.h"
#include "plan/published/published.h"
#include "run/search/what_if.h"

typedef struct LoggedStep {
    int64_t step, tokens;
    double ms;        // measured
    int *lengths, n;  // of its documents, once drawn
} LoggedStep;

static struct {
    char path[DISK_PATH];
    char* start;                      // the last "start" line
    LoggedStep steps[MOST_REPLAYED];  // a ring; if full, the oldest is at seen % MOST_REPLAYED
    int64_t seen;
    double* speed;  // (n_speeds) of the ranks, by the last step that has them
    int n_speeds, saves;
    double blocked, written;  // sums over saves: seconds for which training stood still, and from begin to marker
} logged;

static int count_logged(void) { return (int)MIN(logged.seen, (int64_t)MOST_REPLAYED); }

// ---- the log

static double number(const Json* json, const char* name) {
    double x = NAN;
    json_double(json_get(json->values, name), &x);
    return x;
}

// Takes the speeds of a step, if all ranks have one.
static void take_speeds(const Json* json) {
    const JsonValue *ranks = json_get(json->values, "ranks"),
                    *speeds = ranks && ranks->type == JSON_OBJECT ? json_get(ranks, "speed") : NULL;
    int n = speeds && speeds->type == JSON_ARRAY ? speeds->n : 0, r = 0;
    double* speed = (double*)calloc((size_t)MAX(n, 1), sizeof *speed);
    while (speed && r < n && json_double(json_at(speeds, r), &speed[r]) == 0 && speed[r] > 0) r++;
    double* spent = speed && n && r == n ? logged.speed : speed;
    if (spent != speed) logged.speed = speed, logged.n_speeds = n;
    free(spent);
}

static void take_line(const char* line, size_t n) {
    Json json;
    char event[16];
    if (json_parse(&json, line, n, NULL)) return;
    int is_object = json.values->type == JSON_OBJECT;
    if (is_object && json_text(json_get(json.values, "event"), event, sizeof event) == 0) {
        double blocked = number(&json, "save_blocked_ms"), written = number(&json, "save_seconds");
        if (!strcmp(event, "start")) free(logged.start), logged.start = strndup(line, n);
        if (!strcmp(event, "save") && isfinite(blocked + written))
            logged.saves++, logged.blocked += blocked / 1e3, logged.written += written;
    } else if (is_object && isfinite(number(&json, "step") + number(&json, "tokens") + number(&json, "measured_ms"))) {
        logged.steps[logged.seen++ % MOST_REPLAYED] = (LoggedStep){
            (int64_t)number(&json, "step"), (int64_t)number(&json, "tokens"), number(&json, "measured_ms"), NULL, 0};
        take_speeds(&json);
    }
    json_free(&json);
}

// Reads the log of a run; named: its directory, or the log itself.
static void read_log(const char* named) {
    char err[ERR_BYTES], *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (!disk_is_dir(named)) snprintf(logged.path, sizeof logged.path, "%s", named);
    else if (disk_join(logged.path, named, "log.jsonl", err)) die("what-if: %s", err);
    FILE* file = disk_open_stream(logged.path, err);
    if (!file) die("what-if: %s; expected a run's directory or its log.jsonl", err);
    while ((n = getline(&line, &room, file)) > 0) take_line(line, (size_t)n);
    if (ferror(file)) die("what-if %s: cannot read: %s", logged.path, strerror(errno));
    free(line), fclose(file);
    if (!logged.start) die("what-if %s: expected the log of a run, found no line of its start", logged.path);
    if (logged.seen == 0) die("what-if %s: this run has logged no step", logged.path);
}

// ---- the options of the run

// Restores an option; the values of a list stand one after another.
static void restore(Run* run, const char* name, char* value) {
    char err[ERR_BYTES];
    const Option* o = option_find(name);
    int is_list = o && o->value.type == PATHS;
    for (char *word = value, *rest; word; word = rest) {
        rest = is_list ? strchr(word, ' ') : NULL;
        if (rest) *rest++ = 0;
        if (config_restore(&run->config, name, word, err)) die("what-if %s: %s", logged.path, err);
    }
}

void what_if_read(Run* run) {
    Json json;
    char err[ERR_BYTES], name[64], ranks[32];
    int64_t n = 1;
    if (!*run->config.what_if) return;
    read_log(run->config.what_if);
    if (json_parse(&json, logged.start, strlen(logged.start), err)) die("what-if %s: %s", logged.path, err);
    for (const JsonValue* key = json_members(json_get(json.values, "options")); key; key = json_next(key)) {
        char* value = config_string(&run->config, key[1].length + 1);
        if (!value) die("no memory for the options of %s", logged.path);
        if (json_text(key, name, sizeof name) == 0 && json_string(key + 1, value) >= 0) restore(run, name, value);
    }
    json_int64(json_get(json.values, "ranks"), &n);
    snprintf(ranks, sizeof ranks, "%" PRId64, n);
    if (option_set(&run->config, &option_find("--ranks")->value, ranks, err)) die("what-if %s: %s", logged.path, err);
    json_free(&json);
    if (run->config.strategies && strcmp(run->config.strategies, "none") != 0)
        die("what-if %s: its steps had unlike layouts (--strategies); steps of one layout can be played", logged.path);
    if (run->config.machines.n == 0)
        die("what-if %s: that run had no --machine, whose times are played; name one, as --probe leaves them in "
            "~/.cache/ragged",
            logged.path);
}

// ---- its steps

// Draws the logged steps: the sampler goes through all steps up to the last.
static void draw_steps(const Run* run) {
    enum { CHUNK = 1 << 20 };
    SamplerPosition at = {0};
    int room = MIN(run->config.batch_tokens, CHUNK);
    int64_t last = logged.steps[(logged.seen - 1) % MOST_REPLAYED].step;
    Piece* pieces = (Piece*)calloc((size_t)room, sizeof *pieces);
    if (!pieces) die("no memory for %d documents", room);
    if (run_has_trees(run))
        die("what-if %s: its documents are trees or were joined to some (--shared-prefix); steps without trees can "
            "be played",
            logged.path);
    for (int64_t step = 1; step <= last; step++) {
        int n = sampler_draw_step(run->data.train, &at, pieces, room, run->config.batch_tokens);
        for (int i = 0; i < count_logged(); i++) {
            LoggedStep* s = &logged.steps[i];
            int64_t tokens = 0;
            if (s->step != step) continue;
            s->n = n, s->lengths = (int*)calloc((size_t)n, sizeof(int));
            if (!s->lengths) die("no memory for %d documents", n);
            for (int k = 0; k < n; k++) tokens += s->lengths[k] = pieces[k].length;
            if (tokens != s->tokens)
                die("what-if %s: step %" PRId64 " had %" PRId64 " tokens, found %" PRId64
                    "; these are not the documents of that run",
                    logged.path, step, s->tokens, tokens);
        }
    }
    free(pieces);
}

static void find_layout(Layout* layout, const Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    const Shape* whole = &run->model.whole;
    *layout = layout_even(whole, c->tp, c->pp, c->zero, (Recompute)config_choice(c, "--recompute"));
    Layout otherwise = *layout;
    if ((c->layout && layout_parse(layout, &otherwise, c->layout, strlen(c->layout), err)) ||
        layout_check(layout, whole, c->ranks, err))
        die("what-if %s: its layout: %s", logged.path, err);
}

// Returns the mean ms of a step; plan NULL: as the run planned. Infinite: x->words say why.
static double play(WhatIf* x, Run* run, const Machine* machine, const Layout* layout, const char* plan) {
    static Recommended known;
    double terms[N_LAYOUT_TERMS], sum = 0;
    int n = count_logged();
    x->ms = INFINITY;
    if (run_know_layouts(&known, run, machine, plan)) return snprintf(x->words, ERR_BYTES, "%s", known.words), INFINITY;
    for (int i = 0; i < n && sum < INFINITY; i++)
        sum += layout_documents_ms(terms, known.costs, layout, run->config.capacity, logged.steps[i].lengths,
                                   logged.steps[i].n, x->words);
    return x->ms = sum / n;
}

// ---- paces

// Gives a machine without paces those that the run has learnt, the fastest being 1. Neighbours within 2 % are one kind.
static void take_paces(Machine* m, int ranks) {
    double fastest = 0;
    if (m->n_kinds || logged.n_speeds != ranks) return;
    for (int r = 0; r < ranks; r++) fastest = fmax(fastest, logged.speed[r]);
    for (int r = 0; r < ranks; r++) {
        double pace = logged.speed[r] / fastest;
        if (m->n_kinds && fabs(pace / m->kind_speed[m->n_kinds - 1] - 1) < 0.02) continue;
        if (m->n_kinds == MACHINE_KINDS) die("what-if %s: more than %d unlike ranks", logged.path, MACHINE_KINDS);
        m->kind_first[m->n_kinds] = r, m->kind_gib[m->n_kinds] = 0, m->kind_speed[m->n_kinds++] = pace;
    }
}

static void name_kind(char name[64], const Machine* m, int k, int ranks) {
    int first = m->kind_first[k], last = (k + 1 < m->n_kinds ? MIN(m->kind_first[k + 1], ranks) : ranks) - 1;
    if (first == last) snprintf(name, 64, "without rank %d's slowness", first);
    else snprintf(name, 64, "without the slowness of ranks %d to %d", first, last);
}

// Finds the goodput. A death also loses the steps since a save under way began, as if a restart took so much longer.
static void find_goodput(WhatIf* x, const Config* c) {
    if (c->mtbf <= 0) return;
    if (!logged.saves) die("--mtbf: %s has no save, so nothing says what one takes", logged.path);
    double written = logged.written / logged.saves;
    x->save = logged.blocked / logged.saves;
    x->goodput = goodput_best(c->ranks, c->mtbf, x->ms / 1e3, x->save, c->restart_seconds + written);
}

void what_if_replay(WhatIfs* x, Run* run, const Machine* machine) {
    static WhatIf shown[2 + MACHINE_KINDS + 16];
    static Layout layout;
    Machine m = *machine;
    int ranks = x->ranks;
    take_paces(&m, ranks);
    find_layout(&layout, run);
    draw_steps(run);
    x->cluster = shown, x->steps = count_logged();
    *x->cluster = (WhatIf){.name = "this run", .tokens = run->config.batch_tokens};
    for (int i = 0; i < x->steps; i++) x->cluster->ms += logged.steps[i].ms / x->steps;
    find_goodput(x->cluster, &run->config);
    WhatIf* to = shown + 1;
    snprintf(to->name, sizeof to->name, "played as it ran");
    if (play(to++, run, &m, &layout, NULL) == INFINITY) die("what-if %s: %s", logged.path, shown[1].words);
    for (int k = 0; k < m.n_kinds; k++) {
        Machine other = machine_with_full_pace(&m, k);
        if (m.kind_first[k] >= ranks || m.kind_speed[k] >= 0.95 * other.kind_speed[k]) continue;
        name_kind(to->name, &m, k, ranks);
        play(to++, run, &other, &layout, NULL);
    }
    for (int i = 0; i < n_planners && i < 16 && ranks > 1; i++) {
        if (!strcmp(planners[i]->name, run->config.plan) && !run->config.cp_size) continue;
        snprintf(to->name, sizeof to->name, "by plans of %s", planners[i]->name);
        play(to++, run, &m, &layout, planners[i]->name);
    }
    x->n_replayed = (int)(to - shown) - 1;
}
