// adapter.c - see adapter.h.
#include "run/files/adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/json.h"
#include "run/files/files.h"
#include "run/model/lora.h"

static char* read_config(const Run* run, size_t* n) {
    char err[ERR_BYTES];
    char* text = checkpoint_read_file(run->books->start_from, ADAPTER_CONFIG, n, err);
    if (!text) die("%s", err);
    return text;
}

int adapter_is_there(const Run* run) {
    return run->books->start_from[0] && disk_is_file(run->books->start_from, ADAPTER_CONFIG);
}

const char* adapter_find_base(Run* run) {
    char err[ERR_BYTES], real[CHECKPOINT_PATH];
    Books* books = run->books;
    const Config* c = &run->config;
    size_t n = 0;
    if (adapter_is_there(run) && c->lora_base) snprintf(books->base, sizeof books->base, "%s", c->lora_base);
    else if (adapter_is_there(run)) {
        char* text = read_config(run, &n);
        if (lora_config_base(books->base, text, n, err)) die("%s/%s", books->start_from, err);
        free(text);
    } else if (c->lora_base)
        die("--lora base=%s: expected an adapter, found none in %s", c->lora_base, books->start_from);
    else if (c->lora_rank && !c->resume) snprintf(books->base, sizeof books->base, "%s", books->start_from);
    else return books->start_from;
    if (!disk_is_file(books->base, "config.json") || !hf_has_model(books->base))
        die("%s: expected its base model in %s, found none (config.json, model.safetensors); say where it lies now: "
            "--lora base=DIR",
            books->start_from, books->base);
    if (realpath(books->base, real)) snprintf(books->base, sizeof books->base, "%s", real);
    checkpoint_pin(books->base);  // as long as this process lives
    if (books->claims && !c->resume && disk_is_file(books->base, "DONE") && run->cluster->identity.rank == 0)
        warn("the base %s is a checkpoint: its run may remove it once this one ends (--keep); a copy stays",
             books->base);
    return books->base;
}

DType adapter_merge_dtype(const Run* run) {
    HfFiles files;
    if (hf_open(&files, run->books->base, NULL)) return DT_F32;
    DType dt = files.list[0].n && files.list[0].tensors[0].dtype == DT_BF16 ? DT_BF16 : DT_F32;
    hf_close(&files);
    return dt;
}

// Returns the adapters that --lora puts beside a base; the base itself without that option.
static Shape asked_adapters(const Config* c, Shape base) {
    static const int features[] = {HAS_LORA, HAS_LORA_ATTENTION, HAS_LORA_MLP};
    if (c->lora_rank == 0) return base;
    double alpha = c->lora_alpha > 0 ? c->lora_alpha : 2.0 * c->lora_rank;
    base.features |= features[config_choice(c, "--lora on")];
    base.lora = (Lora){c->lora_rank, 1, alpha / c->lora_rank};
    return base;
}

Shape adapter_shape(const Run* run, Shape base) {
    char err[ERR_BYTES];
    size_t n = 0;
    if (!adapter_is_there(run)) return asked_adapters(&run->config, base);
    char* text = read_config(run, &n);
    if (lora_config_parse(&base, text, n, err)) die("%s/%s", run->books->start_from, err);
    free(text);
    return base;
}

void adapter_check(const Run* run) {
    const Config* c = &run->config;
    int list = c->strategies && strcmp(c->strategies, "none") != 0;
    const struct {
        int is_asked;
        const char *option, *expected;
    } others[] = {
        {!strcmp(c->optimizer, "muon"), "--optimizer muon", "AdamW, which suits matrices of so few rows"},
        {list, "--strategies", "one way to divide the ranks"},
        {c->layout && !strcmp(c->layout, "hydraulis"), "--layout hydraulis", "one way to divide the ranks"},
        {strcmp(c->balance, "off") && strcmp(c->balance, "documents"), "--balance", "off or documents"},
        {c->resume && c->lora_rank && !run->books->base[0], "--resume", "a run that has adapters; --init starts one"}};
    int has_keys = config_was_given(c, "--lora alpha") || config_was_given(c, "--lora on") || c->lora_base;
    if (has_keys && !c->lora_rank) die("--lora: expected rank=R, found other keys alone");
    if (c->lora_rank && !run->books->start_from[0] && !run->model.k->no_results)
        die("--lora: expected --init DIR, a model whose weights stay as they are (--device virtual needs none)");
    if (c->merge && !adapter_is_there(run))
        die("--merge: expected adapters, found a whole model in %s", run->books->start_from);
    for (int i = 0; i < COUNT(others) && c->lora_rank; i++)
        if (others[i].is_asked) die("%s with --lora: expected %s", others[i].option, others[i].expected);
}

// ---- the frozen weights

// The run as if its model were the base.
static Run* with_base(const Run* run) {
    Run* base = (Run*)malloc(sizeof *base);
    if (!base) die("no memory for a base model");
    *base = *run, base->model = *run->model.ranks->frozen;
    return base;
}

// Returns a hash of all values, by two sums as Fletcher's: hash_bytes takes 2.7 times as long, and 8B of them are many.
static uint64_t hash_values(const float* value, size_t n, uint64_t seed) {
    uint64_t sum = 0, sums = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &value[i], sizeof bits);
        sum += bits, sums += sum;
    }
    return hash64(hash64(seed ^ sum) ^ sums);
}

static uint64_t base_hash;
static void put_frozen(void* context, const ParamTensor* tensor, float* value) {
    Run* base = (Run*)context;
    base_hash = hash_values(value, tensor->elems, base_hash);
    state_to_write(base).put_weights(base, tensor, value);
}

// Returns the hash of the base beside which the adapters were trained; 0: they do not say.
static uint64_t expected_base(const Run* run) {
    const char* from = run->books->start_from;
    uint64_t hash = 0;
    size_t n;
    Json json;
    char* text = adapter_is_there(run) && disk_is_file(from, "state.json")
                     ? checkpoint_read_file(from, "state.json", &n, NULL)
                     : NULL;
    if (text && !json_parse(&json, text, n, NULL)) {
        if (json_uint64(json_get(json.values, "base"), &hash)) hash = 0;
        json_free(&json);
    }
    free(text);
    return hash;
}

int adapter_read_base(Run* run, Err err) {
    if (!run->books->base[0]) return 0;
    Shape alone;
    Run* base = with_base(run);
    ModelState state = state_to_read(base, &alone);
    state.put_weights = put_frozen, base_hash = 1;
    int failed = hf_read(&state, 0, run->books->base, err);
    uint64_t saved = expected_base(run);
    free(base);
    if (!failed && saved && saved != base_hash)
        failed = fail(err,
                      "%s: expected the base that these adapters were trained beside, found other weights; say "
                      "where it lies: --lora base=DIR",
                      run->books->base);
    run->books->saved.base = base_hash;
    return failed;
}

// ---- both as one model

typedef struct Both {
    Run *run, *base;
} Both;

// value = a tensor of the base, its adapter added.
static void fetch_merged(void* context, StateKind kind, const ParamTensor* tensor, float* value) {
    Run *run = ((Both*)context)->run, *base = ((Both*)context)->base;
    const Shape* adapters = &run->model.whole;
    ParamId A = lora_of(adapters, tensor->id);
    float* parts[2];
    state_to_write(base).fetch(base, kind, tensor, value);
    if (A == N_PARAMS) return;
    for (int i = 0; i < 2; i++) {
        ParamTensor t = shape_param(adapters, (ParamId)(A + i), tensor->layer);
        if (!(parts[i] = (float*)malloc(t.elems * sizeof(float)))) die("no memory for an adapter");
        state_to_write(run).fetch(run, kind, &t, parts[i]);
    }
    lora_merge(value, tensor, adapters, parts[0], parts[1]);
    free(parts[0]), free(parts[1]);
}

void adapter_merge(Run* run) {
    char err[ERR_BYTES] = "", path[CHECKPOINT_PATH];
    const char* dir = run->config.merge;
    int is_first = run->model.world->rank == 0;
    Run* base = with_base(run);
    Both both = {run, base};
    ModelState state = state_to_write(base);
    state.fetch = fetch_merged, state.context = &both;
    run_path(path, dir, "model.safetensors");
    int failed = is_first && (disk_make_dirs(dir, err) ||
                              (disk_count(dir) > 0 && fail(err, "--merge %s: expected a new directory", dir)));
    die_together(run, failed, err, "");
    failed = hf_write(&state, STATE_WEIGHTS, NULL, 0, is_first ? path : NULL, err);
    if (!failed && is_first) failed = state_put_configs(run, &base->model.whole, dir, err);
    if (failed && is_first) unlink(path);  // the next try finds an empty directory
    free(base);
    die_together(run, failed, err, "--merge: ");
    say(stdout, "merged  %s and %s into %s, as %s", run->books->start_from, run->books->base, dir,
        dtype_name(run->model.dt));
}
