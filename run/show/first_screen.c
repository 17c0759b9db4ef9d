// first_screen.c - --version, and what a run says before its first step: what is trained, on what, where, in how much
// memory, and where it goes; with --verbose also all options, rows and every class of bytes.
#include <inttypes.h>
#include <stdio.h>

#include "data/sampler_mix.h"
#include "run/run.h"

void run_print_version(void) {
    printf("ragged " RUN_VERSION "\n");
    printf(
        "compiled by "
#ifndef __clang__
        "gcc "
#endif
        __VERSION__
#ifdef HAVE_CUDA
        ", with CUDA"
#endif
#ifdef HAVE_MPI
        ", with MPI"
#endif
        "\n");
}

static void print_option(void* column, const char* name, const char* value) {
    int* at = (int*)column;
    int n = (int)(strlen(name) + strlen(value)) + 2;
    if (*at + n > 118) printf("\n "), *at = 1;
    say_part(stdout, " %s %s", name, value);
    *at += n;
}

// "118.39M", "0.86M", "1234"
static const char* count(int64_t n, char text[32]) {
    if (n >= 100000) snprintf(text, 32, "%.2fM", (double)n / 1e6);
    else snprintf(text, 32, "%" PRId64, n);
    return text;
}

static void print_model(const Run* run) {
    const Shape* s = &run->model.whole;
    char n[32], layers[64], heads[64], kv[64] = "";
    if (s->NKV != s->NH) snprintf(kv, sizeof kv, " (%d of keys and values)", s->NKV);
    say(stdout, "model   %s, %s parameters: %s, width %d, %s%s, context %d, %s%d tokens", arch_table[s->arch].title,
        count((int64_t)shape_param_count(s), n), text_many(s->L, "layer", layers), s->C,
        text_many(s->NH, "head", heads), kv, s->context,
        run->data.tokenizer->is_bytes && run->data.guessed_bytes ? "bytes as " : "", s->V);
}

static void print_corpora(const Run* run) {
    char n[32];
    for (int c = 0; c < docs_corpora(run->data.docs); c++) {
        const DocsCorpus* corpus = docs_corpus(run->data.docs, c);
        say(stdout, "        %.1f %% of each step from %s, which has %s tokens", 100 * corpus->share, corpus->name,
            count(sampler_corpus_tokens(run->data.train, c), n));
    }
}

static void print_data(const Run* run) {
    const Docs* docs = run->data.docs;
    const Sampler *train = run->data.train, *val = run->data.val;
    char n[32], held[32], many[64], words[256];
    printf("data    %s tokens in %s to train on, %s in %" PRId64 " to validate",
           count(sampler_tokens(train, SPLIT_TRAIN), n),
           text_many(sampler_documents(train, SPLIT_TRAIN), "document", many),
           count(sampler_tokens(val, SPLIT_VAL), held), sampler_documents(val, SPLIT_VAL));
    if (run->config.eval_every && sampler_tokens(val, SPLIT_VAL) > run->config.eval_tokens)
        printf(" (at most %d tokens a time)", run->config.eval_tokens);
    if (docs->skipped) printf("; %s passed over", text_many(docs->skipped, "file", many));
    if (docs_packed(docs))
        printf(" (%" PRId64 " compressed: *.jsonl.gz, *.txt.gz and .zst are read)", docs_packed(docs));
    if (docs_plain_jsonl(docs))
        printf("; %" PRId64 " .jsonl without \"text\" or JSON array read as plain text", docs_plain_jsonl(docs));
    if (docs_runs(docs)) printf("; %s of this program left out", text_many(docs_runs(docs), "run", many));
    printf("\n");
    if (!run_is_brief(run)) printf("        %s\n", sampler_describe(val, words));
    if (docs->divided)
        say(stdout,
            "        text files divided at %s into %" PRId64 " documents; --document-separator none keeps them whole",
            run->config.separator, docs->divided);
    print_corpora(run);
}

static void print_device(const Run* run) {
    const Model* m = &run->model;
    const Comm* c = m->world;
    char ranks[32] = "";
    if (c->size > 1) snprintf(ranks, sizeof ranks, "%d ranks of ", c->size);
    if (m->k->virtual_time) {
        say(stdout, "device  %s%s, %s, times of --machine %s%s", ranks, m->k->name, dtype_name(m->dt),
            run->config.machine, m->k->no_results ? "; nothing is computed, so there are no losses" : "");
        return;
    }
    char threads[64] = "";
    int n = run->config.threads, named = m->k->on_host && n;
    if (named) text_many(n, "thread", threads);
    printf("device  %s%s, %s%s%s, %.0f GFLOP/s at most%s\n", ranks, m->k->name, dtype_name(m->dt), named ? ", " : "",
           threads, run->cluster->peak / 1e9,
           run->cluster->oversubscribed ? "; ranks share cores: expect no speed from that" : "");
}

static void print_run(const Run* run) {
    const Config* c = &run->config;
    char every[64] = "no checkpoint", steps[64];
    if (c->save_every) snprintf(every, sizeof every, "a checkpoint every %d", c->save_every);
    text_many(c->steps, "step", steps);
    say(stdout, "run     %s%s%s: %s of %d tokens, %s; report.html, log.jsonl", run->books->out,
        run->books->start_from[0] ? ", from " : "", run->books->start_from, steps, c->batch_tokens, every);
}

static void put_size(TextTable* table, const char* name, size_t bytes) {
    if (bytes >= (size_t)10 << 20) text_cells(table, "%s\t%.1f MiB\n", name, (double)bytes / (1 << 20));
    else text_cells(table, "%s\t%.1f KiB\n", name, (double)bytes / (1 << 10));
}

static void print_memory(const MemoryPlan* plan) {
    for (int counts = 1; counts >= plan->on_host; counts--) {
        TextTable table = {0};
        printf("memory%s\n", plan->on_host ? "" : counts ? " of the device" : " of the host");
        for (int i = 0; i < plan->n; i++)
            if (memory_counts(plan, plan->entries[i].where) == counts)
                put_size(&table, plan->entries[i].name, plan->entries[i].bytes);
        if (counts) put_size(&table, "total", plan->total);
        text_table(stdout, &table, "  ");
    }
}

void run_print(const Run* run, const MemoryPlan* plan) {
    int column = 7, says_all = !run_is_brief(run);
    char total[32];
    if (says_all) {
        printf("options");
        Config config = run_settled_config(run);
        config_visit(&config, print_option, &column);
        printf("\n");
    }
    print_model(run);
    print_data(run);
    print_device(run);
    if (says_all && run->strategies) printf("step    %d tokens\n", run->config.batch_tokens);
    else if (says_all)
        printf("step    %d tokens in rows of at most %d\n", run->config.batch_tokens, run->settled.capacity);
    if (says_all) print_memory(plan);
    else
        printf("memory  %s%s\n", text_bytes((double)plan->total, total),
               run->model.world->size > 1 ? " on every rank" : "");
    if (run->books->claims) print_run(run);
}
