// first_screen.c - what a run says before its first step: five lines (what is trained, on what, where, in how much
// memory, and where it goes), or with --verbose all that was understood, in the order in which it matters.
#include <inttypes.h>
#include <stdio.h>

#include "run/run.h"

// ---- everything

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

static void print_shape(const Shape* s) {
    char kv[64] = "", layers[64], heads[64];
    if (s->NKV != s->NH) snprintf(kv, sizeof kv, " (%d of keys and values)", s->NKV);
    printf("model   %s, %s, width %d, %s%s, context %d, vocabulary %d: %.2fM parameters\n", arch_table[s->arch].title,
           text_many(s->L, "layer", layers), s->C, text_many(s->NH, "head", heads), kv, s->context, s->V,
           (double)shape_param_count(s) / 1e6);
}

static void print_divided(const Run* run) {
    if (docs_divided(run->data.docs))
        say(stdout,
            "        text files divided at %s into %" PRId64 " documents; --document-separator none keeps them whole",
            run->config.separator, docs_divided(run->data.docs));
}

static void print_all(const Run* run) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    int column = 7;
    printf("options");
    config_visit(c, print_option, &column);
    printf("\n");
    if (m->k->virtual_time)
        say(stdout, "device  %s, %s, times of --machine %s%s", m->k->name, dtype_name(m->dt), c->machine,
            m->k->no_results ? "; nothing is computed, so there are no losses" : "");
    else say(stdout, "device  %s, %s, peak %.0f GFLOP/s (measured)", m->k->name, dtype_name(m->dt), run->peak / 1e9);
    print_shape(&m->whole);
    if (!run->training) return;
    const Sampler* s = run->data.train;
    char tokens[32], documents[64], files[64];
    printf("data    %s, %s tokens in %s", text_many(docs_count(run->data.docs), "document", documents),
           count(docs_tokens(run->data.docs), tokens), text_many(docs_files(run->data.docs), "file", files));
    if (docs_skipped(run->data.docs))
        printf(" (%" PRId64 " passed over: empty, unreadable or no text)", docs_skipped(run->data.docs));
    if (docs_runs(run->data.docs))
        printf("\n        %s of this program left out: what they wrote is not read",
               text_many(docs_runs(run->data.docs), "run", files));
    printf("\n        train on %" PRId64 " (%s tokens); ", sampler_documents(s, SPLIT_TRAIN),
           count(sampler_tokens(s, SPLIT_TRAIN), tokens));
    printf("%s\n", sampler_describe(run->data.val));
    print_divided(run);
    printf("step    %d tokens", c->batch_tokens);
    printf(run->strategies ? "\n" : " in rows of at most %d\n", c->capacity);
    if (run->out[0] || run->start_from[0])
        say(stdout, "run     %s%s%s", run->out, run->start_from[0] ? ", from " : "", run->start_from);
}

static void print_size(const char* name, size_t bytes) {
    if (bytes >= (size_t)10 << 20) printf("  %-20s %10.1f MiB\n", name, (double)bytes / (1 << 20));
    else printf("  %-20s %10.1f KiB\n", name, (double)bytes / (1 << 10));
}

static void print_memory(const MemoryPlan* plan) {
    printf(plan->on_host ? "memory\n" : "memory of the device\n");
    for (int counts = 1; counts >= plan->on_host; counts--) {
        for (int i = 0; i < plan->n; i++)
            if (memory_counts(plan, plan->entries[i].where) == counts)
                print_size(plan->entries[i].name, plan->entries[i].bytes);
        if (counts) print_size("total", plan->total);
        if (counts && !plan->on_host) printf("memory of the host\n");
    }
}

// ---- five lines

static void brief_model(const Run* run) {
    const Shape* s = &run->model.whole;
    char n[32];
    char layers[64], heads[64];
    say(stdout, "model   %s, %s parameters: %s, width %d, %s, context %d, %s%d tokens", arch_table[s->arch].title,
        count((int64_t)shape_param_count(s), n), text_many(s->L, "layer", layers), s->C,
        text_many(s->NH, "head", heads), s->context,
        tokenizer_is_bytes(run->data.tokenizer) && run->data.guessed_bytes ? "bytes as " : "", s->V);
}

static void print_corpora(const Run* run) {
    char n[32];
    for (int c = 0; c < docs_corpora(run->data.docs); c++) {
        const DocsCorpus* corpus = docs_corpus(run->data.docs, c);
        say(stdout, "        %.1f %% of each step from %s, which has %s tokens", 100 * corpus->share, corpus->name,
            count(sampler_corpus_tokens(run->data.train, c), n));
    }
}

static void brief_data(const Run* run) {
    const Docs* docs = run->data.docs;
    const Sampler *train = run->data.train, *val = run->data.val;
    char n[32], held[32], many[64];
    printf("data    %s tokens in %s to train on, %s in %" PRId64 " to validate",
           count(sampler_tokens(train, SPLIT_TRAIN), n),
           text_many(sampler_documents(train, SPLIT_TRAIN), "document", many),
           count(sampler_tokens(val, SPLIT_VAL), held), sampler_documents(val, SPLIT_VAL));
    if (run->config.eval_every && sampler_tokens(val, SPLIT_VAL) > run->config.eval_tokens)
        printf(" (at most %d tokens a time)", run->config.eval_tokens);
    if (docs_skipped(docs)) printf("; %s passed over", text_many(docs_skipped(docs), "file", many));
    if (docs_packed(docs))
        printf(" (%" PRId64 " compressed: *.jsonl.gz, *.txt.gz and .zst are read)", docs_packed(docs));
    if (docs_plain_jsonl(docs))
        printf("; %" PRId64 " .jsonl without \"text\" or JSON array read as plain text", docs_plain_jsonl(docs));
    if (docs_runs(docs)) printf("; %s of this program left out", text_many(docs_runs(docs), "run", many));
    printf("\n");
    print_divided(run);
    print_corpora(run);
}

static void brief_device(const Run* run) {
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
           threads, run->peak / 1e9, run->oversubscribed ? "; ranks share cores: expect no speed from that" : "");
}

static void brief_run(const Run* run) {
    const Config* c = &run->config;
    char every[64] = "no checkpoint", steps[64];
    if (c->save_every) snprintf(every, sizeof every, "a checkpoint every %d", c->save_every);
    text_many(c->steps, "step", steps);
    say(stdout, "run     %s%s%s: %s of %d tokens, %s; report.html, log.jsonl", run->out,
        run->start_from[0] ? ", from " : "", run->start_from, steps, c->batch_tokens, every);
}

void run_print(const Run* run, const MemoryPlan* plan) {
    if (!run_is_brief(run)) {
        print_all(run);
        print_memory(plan);
        return;
    }
    brief_model(run);
    brief_data(run);
    brief_device(run);
    char total[32];
    printf("memory  %s%s\n", text_bytes((double)plan->total, total),
           run->model.world->size > 1 ? " on every rank" : "");
    if (run->claims) brief_run(run);
}
