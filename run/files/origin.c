// origin.c - the directory of a run, which belongs to it alone, and the checkpoint that it starts from, or should go on
// from after a divergence.
//
// Rank 0 decides and tells the others: it claims the directory, and reads all files of a checkpoint for their hashes.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/json.h"
#include "data/model_files.h"
#include "run/files/close.h"
#include "run/files/adapter.h"

// Rank 0 tells the others this.
typedef struct Origin {
    int failed;
    char words[ERR_BYTES];
    char out[CHECKPOINT_PATH], start_from[CHECKPOINT_PATH];
} Origin;

static void warn_skipped(const char* why) { warn("%s; trying the checkpoint before it", why); }

// A run that goes on from an older checkpoint moves damaged ones, all that are newer, out of the way: there --keep does
// not count them.
static void set_aside_newer(const Origin* o) {
    char dir[CHECKPOINT_PATH], moved[CHECKPOINT_PATH], err[ERR_BYTES];
    CheckpointList list;
    if (checkpoint_list(&list, o->out, err)) warn("%s", err);
    for (int i = 0; i < list.n && !checkpoint_path(dir, o->out, list.all[i].step, err); i++) {
        if (!strcmp(dir, o->start_from)) break;
        if (checkpoint_set_aside(dir, moved, err)) warn("%s", err);
        else warn("%s is now %s", dir, moved);
    }
    free(list.all);
}

// ---- the directory

static RunDir* claimed;
static void release_claimed(void) {
    if (claimed) run_dir_release(claimed);
}

// --resume runs/3/step-000120 names the run too.
static int out_of_resume_from(Run* run, Origin* o) {
    char* from = config_string(&run->config, strlen(run->config.resume_from) + 1);
    if (!from) return fail(o->words, "out of memory for options");
    strcpy(from, run->config.resume_from);
    for (size_t n = strlen(from); n > 1 && from[n - 1] == '/';) from[--n] = 0;
    run->config.resume_from = from;
    const char* slash = strrchr(from, '/');
    if (!slash) return 0;
    if (run->config.out) return fail(o->words, "--resume %s: expected a step like step-000120 beside --out", from);
    snprintf(o->out, sizeof o->out, "%.*s", MAX((int)(slash - from), 1), from);
    return 0;
}

// The directory that is named, or the newest, or for a new run none yet.
static int find_directory(Run* run, Origin* o) {
    const Config* c = &run->config;
    int needs_run = c->resume || (run->books->uses_model && !c->init);
    if (c->out && !c->out[0]) return fail(o->words, "--out: expected a directory, found nothing");
    if (c->out) snprintf(o->out, sizeof o->out, "%s", c->out);
    if (c->resume_from && out_of_resume_from(run, o)) return -1;
    if (o->out[0] || !needs_run) return 0;
    int found = run_dir_newest(o->out, "runs", o->words);
    if (found) return MIN(found, 0);
    return fail(o->words, "%s: expected a run in ./runs, found none; try --out DIR",
                c->resume ? "--resume" : run->books->uses_model);
}

// A run that writes must be alone in its directory.
static int claim(Run* run, Origin* o) {
    const Config* c = &run->config;
    int64_t step;
    if (c->resume && !disk_is_dir(o->out))
        return fail(o->words, "--resume: no such directory: %s; try another --out", o->out);
    if (c->resume && !run_dir_is_marked(o->out) && checkpoint_latest(o->out, o->start_from, &step, NULL) <= 0)
        return fail(o->words, "--resume: no complete checkpoint in %s, which is no run; try another --out", o->out);
    int failed = o->out[0] ? run_dir_claim(&run->books->dir, o->out, o->words)
                           : run_dir_claim_next(&run->books->dir, "runs", o->words);
    if (failed) return -1;
    claimed = &run->books->dir;
    die_as.last = release_claimed;
    strcpy(o->out, run->books->dir.path);
    if (run->books->dir.unlocked) warn("%s: no locks on this file system: start no second run there", o->out);
    if (c->resume || checkpoint_latest(o->out, o->start_from, &step, NULL) <= 0) return 0;
    return fail(o->words, "%s holds a run already (step %" PRId64 "); try --resume, or another --out", o->out, step);
}

// ---- the checkpoint

// The newest whole one of the run, or the one that --resume names.
static int choose(Run* run, Origin* o) {
    const Config* c = &run->config;
    const char *why = c->resume ? "--resume" : run->books->uses_model, *from = c->resume_from;
    char err[ERR_BYTES];
    if (from && strrchr(from, '/')) from = strrchr(from, '/') + 1;
    int64_t step = from ? checkpoint_step(from) : -1;
    if (from && step < 0) return fail(o->words, "--resume: expected a step like step-000120, found %s", from);
    int found = checkpoint_choose(o->out, step, o->start_from, &run->books->pin, step < 0 ? warn_skipped : NULL, err);
    if (found > 0 && step < 0 && run->books->claims) set_aside_newer(o);
    if (found > 0) return 0;
    if (found < 0) return fail(o->words, "%s: %s", why, err);
    if (step >= 0) return fail(o->words, "--resume: no checkpoint of step %" PRId64 " in %s", step, o->out);
    return fail(o->words, "%s: no complete checkpoint in %s; try another --out, or start anew", why, o->out);
}

// Says what a directory is that holds no checkpoint of ours and no model.
static int refuse_init(const char* init, const char* why, Origin* o) {
    char newest[CHECKPOINT_PATH], word[CHECKPOINT_PATH];
    int64_t step;
    static const char* const parts[] = {"config.json", "model.safetensors or model.safetensors.index.json"};
    const char* slash = strrchr(init, '/');
    if (checkpoint_latest(init, newest, &step, NULL) > 0)
        return fail(o->words, "--init: %s is a run, expected one of its checkpoints; try --init %s", init,
                    text_quoted(newest, word, sizeof word));
    if (run_dir_is_marked(init)) return fail(o->words, "--init: %s is a run that has saved no checkpoint yet", init);
    if (!disk_is_dir(init) && access(init, F_OK) == 0) {
        snprintf(newest, sizeof newest, "%.*s", slash ? MAX((int)(slash - init), 1) : 1, slash ? init : ".");
        return fail(o->words, "--init: %s is a file, expected the directory of a model (%s and %s); try --init %s",
                    init, parts[0], parts[1], text_quoted(newest, word, sizeof word));
    }
    if (!disk_is_dir(init))
        return fail(o->words, "--init: no such directory: %s (a model of Hugging Face's hub must be downloaded first)",
                    init);
    if (disk_is_file(init, ADAPTER_CONFIG))
        return fail(o->words, "--init: %s: expected " ADAPTER_FILE " beside " ADAPTER_CONFIG ", found none", init);
    if (disk_is_file(init, "state.json") || disk_is_file(init, "DONE")) return fail(o->words, "--init: %s", why);
    if (disk_is_file(init, "pytorch_model.bin") && !hf_has_model(init))
        return fail(o->words,
                    "--init: %s has pytorch_model.bin, which this program does not read; save the model as safetensors",
                    init);
    return fail(o->words, "--init: expected a checkpoint or a Hugging Face directory (%s and %s), found no %s in %s",
                parts[0], parts[1], parts[disk_is_file(init, parts[0])], init);
}

static int choose_init(Run* run, Origin* o) {
    const char* init = run->config.init;
    char err[ERR_BYTES];
    snprintf(o->start_from, sizeof o->start_from, "%s", init);
    run->books->pin = checkpoint_pin(init);
    if (checkpoint_is_foreign(init) || checkpoint_verify(init, err) == 0) return 0;
    return refuse_init(init, err, o);
}

static int choose_start(Run* run, Origin* o) {
    const Config* c = &run->config;
    if (c->resume || (run->books->uses_model && !c->init)) return choose(run, o);
    return c->init ? choose_init(run, o) : 0;
}

// An option that was given must agree with the checkpoint's shape; one that was not takes its value.
static void settle_option(int* option, const char* name, int found, const char* where) {
    if (*option && *option != found)
        die("%s: expected %s %d, found %d; leave %s out", where, name, *option, found, name);
    *option = found;
}

static void settle_choice(const char** option, const char* name, const char* found, const char* where) {
    if (strcmp(*option, "preset") != 0 && strcmp(*option, found) != 0)
        die("%s: expected %s %s, found %s; leave %s out", where, name, *option, found, name);
    *option = found;
}

static void settle_adapter(Config* c, const Shape* shape, const char* where) {
    double alpha = shape->lora.scale * shape->lora.rank;
    int features = shape->features & HAS_LORA;
    const char* on = features == HAS_LORA ? "all" : features == HAS_LORA_MLP ? "mlp" : "attention";
    int rank = shape->lora.rank, differs = (config_was_given(c, "--lora rank") && c->lora_rank != rank) ||
                                           (config_was_given(c, "--lora alpha") && c->lora_alpha != alpha) ||
                                           (config_was_given(c, "--lora on") && strcmp(c->lora_on, on) != 0);
    if (differs)
        die("%s: expected --lora rank=%d,alpha=%g,on=%s, found others; leave them out", where, rank, alpha, on);
    c->lora_rank = rank, c->lora_alpha = alpha, c->lora_on = on;
}

static void settle_shape(Config* c, Shape* shape, const char* where) {
    enum { USUAL_CONTEXT = 4096 };
    const struct {
        int* option;
        const char* name;
        int found;
    } sizes[] = {{&c->layers, "--layers", shape->L},
                 {&c->width, "--width", shape->C},
                 {&c->heads, "--heads", shape->NH},
                 {&c->kv_heads, "--arch kv-heads", shape->NKV},
                 {&c->head_size, "--arch head-size", shape->HS},
                 {&c->hidden, "--arch hidden", shape->U},
                 {&c->vocab, "--vocab", shape->V},
                 {&c->context, "--context", shape->context}};
    // Rotary positions go on without end: a model may be trained on shorter documents than it was made for.
    int n = COUNT(sizes) - !shape_has(shape, HAS_POSITIONS), on = shape->features & HAS_LORA;
    settle_choice(&c->arch, "--arch", arch_table[shape->arch].name, where);
    for (int i = 0; i < n; i++) settle_option(sizes[i].option, sizes[i].name, sizes[i].found, where);
    if (on) settle_adapter(c, shape, where);
    settle_choice(&c->tie, "--arch tie", shape_has(shape, HAS_HEAD) ? "no" : "yes", where);
    if (c->rope_theta > 0 && shape->theta > 0 && c->rope_theta != shape->theta)
        die("%s: expected --arch theta=%g, found %g; leave it out", where, c->rope_theta, shape->theta);
    c->rope_theta = shape->theta;
    if (!c->context) c->context = MIN(shape->positions, USUAL_CONTEXT);
    if (c->context > shape->positions)
        die("%s: expected --context of at most %d, for which this model was made, found %d", where, shape->positions,
            c->context);
    shape->context = c->context;
}

// A model is used on any number of ranks, however many it was trained on.
static void forget_ranks(Config* c) {
    if (!config_was_given(c, "--tp")) c->tp = 1;
    if (!config_was_given(c, "--pp")) c->pp = 1;
    if (!config_was_given(c, "--layout")) c->layout = NULL;
    if (!config_was_given(c, "--memory")) c->memory = 0;
    if (!config_was_given(c, "--strategies")) c->strategies = NULL;
}

static int is_saved(const Config* c, const char* option) { return !config_was_given(c, option); }

// fit_ranks drops saved ways to divide ranks that these cannot have, so that a run goes on with any number of them.
// left: their names, for people.
static void fit_ranks(Config* c, const Shape* shape, int ranks, char* left, size_t room) {
    static Layout layout;
    static StrategyList list;
    size_t n = 0;
    int context = c->context ? c->context : shape->context;
    Layout even = layout_even(shape, 1, 1, c->zero, RECOMPUTE_NONE);
    if (c->strategies && is_saved(c, "--strategies") &&
        !strategies_parse(&list, c->strategies, strlen(c->strategies), NULL) &&
        strategies_check(&list, shape, ranks, NULL))
        c->strategies = NULL, text_append(left, room, &n, ", --strategies");
    if (c->layout && is_saved(c, "--layout") && !layout_parse(&layout, &even, c->layout, strlen(c->layout), NULL) &&
        layout_check(&layout, shape, ranks, NULL))
        c->layout = NULL, text_append(left, room, &n, ", --layout");
    if (ranks % (c->tp * c->pp) && c->pp > 1 && is_saved(c, "--pp"))
        text_append(left, room, &n, ", --pp %d", c->pp), c->pp = 1;
    if (ranks % (c->tp * c->pp) && c->tp > 1 && is_saved(c, "--tp"))
        text_append(left, room, &n, ", --tp %d", c->tp), c->tp = 1;
    int data_ranks = ranks / (c->tp * c->pp);
    if (c->cp_size > data_ranks && is_saved(c, "--cp"))
        text_append(left, room, &n, ", --cp %d", c->cp_size), c->cp_size = 0;
    if (c->capacity && (int64_t)c->capacity * data_ranks < context && is_saved(c, "--capacity"))
        text_append(left, room, &n, ", --capacity"), c->capacity = 0, c->rank_capacity = NULL;
}

// Shape, options and state of the checkpoint.
static void read_start(Run* run) {
    char err[ERR_BYTES], left[256] = "", words[64];
    Config* c = &run->config;
    Shape shape;
    size_t n = 0;
    int is_first = run->cluster->identity.rank == 0, ranks = MAX(run->cluster->identity.size, c->ranks);
    const char* base = adapter_find_base(run);
    char* text = checkpoint_read_file(base, "config.json", &n, err);
    if (!text || hf_config_parse(&shape, text, n, err)) die("%s: %s", base, err);
    free(text);
    if (c->resume || run->books->uses_model) {
        if (!config_was_given(c, "--optimizer"))
            c->optimizer = "adamw";  // a run that says none is older than the option
        text = checkpoint_read_file(run->books->start_from, "state.json", &n, err);
        int is_elsewhere = !text && run->books->uses_model;  // a model from elsewhere has none
        if (!is_elsewhere && (!text || run_state_parse(&run->books->saved, c, text, n, err)))
            die("%s: %s", run->books->start_from, err);
        free(text);
        const RunState* saved = &run->books->saved;
        run->state = (TrainState){saved->step, saved->position, saved->loss_hash, saved->loss, saved->val_loss};
    }
    if (run->books->uses_model) forget_ranks(c);
    else if (c->overruled && is_first) printf("resume  without its saved %s, for what was given\n", c->overruled);
    if (run->books->saved.ranks != ranks) fit_ranks(c, &shape, ranks, left, sizeof left);
    if (c->resume && left[0] && is_first)
        printf("resume  without its saved %s, which %s cannot have\n", left + 2, text_many(ranks, "rank", words));
    shape = adapter_shape(run, shape);
    settle_shape(c, &shape, run->books->start_from);
    run->model.whole = shape;
    adapter_check(run);
}

static void tell(Run* run, Origin* o) {
    run_tell_all(run->model.world, o, sizeof *o);
    if (o->failed) die("%s", o->words);
}

void run_find_origin(Run* run) {
    static Origin o;
    int first = run->model.world->rank == 0;
    if (first) o.failed = find_directory(run, &o) || (run->books->claims && claim(run, &o));
    tell(run, &o);
    strcpy(run->books->out, o.out);
    close_find(run);
    if (first) o.failed = choose_start(run, &o);
    tell(run, &o);
    strcpy(run->books->start_from, o.start_from);
    if (run->books->start_from[0]) read_start(run);
}

void run_leave_origin(Run* run) {
    checkpoint_unpin(run->books->pin);
    if (run->books->dir.lock >= 0) close(run->books->dir.lock);
}

RunState run_saved_state(const Run* run) {
    RunState saved = run->books->saved;
    const TrainState* now = &run->state;
    saved.step = now->step, saved.position = now->position;
    saved.loss_hash = now->loss_hash, saved.loss = now->loss, saved.val_loss = now->val_loss;
    return saved;
}

// ---- after a divergence

// The loss of the run when a checkpoint was saved; NaN: not known.
static double saved_loss(const char* run_dir, int64_t step) {
    char dir[CHECKPOINT_PATH];
    size_t n;
    Json json;
    double loss = NAN;
    char* text = checkpoint_path(dir, run_dir, step, NULL) ? NULL : checkpoint_read_file(dir, "state.json", &n, NULL);
    if (text && !json_parse(&json, text, n, NULL)) {
        if (json_double(json_get(json.values, "loss"), &loss)) loss = NAN;
        json_free(&json);
    }
    free(text);
    return loss;
}

// The newest checkpoint that is not on its way up already: its loss is within a tenth of the least. -1: there is none.
static int64_t last_good(const char* run_dir) {
    double least = INFINITY;
    CheckpointList list;
    if (checkpoint_list(&list, run_dir, NULL)) return -1;
    int64_t good = list.n > 0 ? list.all[0].step : -1;
    for (int i = 0; i < list.n; i++) least = fmin(least, saved_loss(run_dir, list.all[i].step));
    for (int i = list.n - 1; i >= 0; i--)
        if (saved_loss(run_dir, list.all[i].step) <= 1.1 * least) good = list.all[i].step;
    free(list.all);
    return good;
}

void run_diverged(Run* run) {
    const Step* step = &run->step;
    int64_t good = last_good(run->books->out);
    char out[CHECKPOINT_PATH], instead[2 * CHECKPOINT_PATH + 128] = "nothing was saved; start again";
    if (good >= 0)
        snprintf(instead, sizeof instead,
                 "no checkpoint is changed; go on from the last good one: %s --resume step-%06" PRId64 " --out %s",
                 run->books->command, good, text_quoted(run->books->out, out, sizeof out));
    die("step %" PRId64 ": expected a finite loss and gradient norm, found %g and %g; %s%s --lr %g%s", step->number,
        step->loss, step->grad_norm, instead, good < 0 ? " with" : "", run->config.lr / 4,
        run->config.clip > 0 ? "" : " --clip 1");
}
