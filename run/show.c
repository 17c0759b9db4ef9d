// show.c - what a person sees before the first step: everything that was understood, in the order in which it matters.
#include <inttypes.h>
#include <stdio.h>

#include "run/run.h"

static void print_option(void* column, const char* name, const char* value) {
    int* at = (int*)column;
    int n = (int)(strlen(name) + strlen(value)) + 2;
    if (*at + n > 118) printf("\n "), *at = 1;
    printf(" %s %s", name, value);
    *at += n;
}

// "118.39M", "1234"
static const char* count(int64_t n, char text[32]) {
    if (n >= 1000000) snprintf(text, 32, "%.2fM", (double)n / 1e6);
    else snprintf(text, 32, "%" PRId64, n);
    return text;
}

void run_print(const Run* run) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    int column = 7;
    printf("options");
    config_visit(c, print_option, &column);
    printf("\ndevice  %s, %s, matmul limit %.0f GFLOP/s (measured)\n", m->k->name, dtype_name(m->dt),
           run->matmul_limit / 1e9);
    printf("model   GPT-2, %d layers, width %d, %d heads, context %d, vocabulary %d: %.2fM parameters\n", m->shape.L,
           m->shape.C, m->shape.NH, m->shape.context, m->shape.V, (double)shape_param_count(&m->whole) / 1e6);
    if (!run->training) return;
    const Sampler* s = run->data.train;
    char tokens[32];
    printf("data    %" PRId64 " documents, %s tokens in %" PRId64 " files", docs_count(run->data.docs),
           count(docs_tokens(run->data.docs), tokens), docs_files(run->data.docs));
    if (docs_skipped(run->data.docs))
        printf(" (%" PRId64 " passed over: empty, unreadable or no text)", docs_skipped(run->data.docs));
    printf("\n        train on %" PRId64 " (%s tokens); ", sampler_documents(s, SPLIT_TRAIN),
           count(sampler_tokens(s, SPLIT_TRAIN), tokens));
    printf("%s\n", sampler_describe(run->data.val));
    printf("step    %d tokens in rows of at most %d\n", c->batch_tokens, c->capacity);
    printf("run     %s%s%s\n", run->out, run->start_from[0] ? ", from " : "", run->start_from);
}

static void print_size(const char* name, size_t bytes) {
    if (bytes >= (size_t)10 << 20) printf("  %-20s %10.1f MiB\n", name, (double)bytes / (1 << 20));
    else printf("  %-20s %10.1f KiB\n", name, (double)bytes / (1 << 10));
}

void run_print_memory(const MemoryPlan* plan) {
    printf("memory\n");
    for (int i = 0; i < plan->n; i++) print_size(plan->rows[i].name, plan->rows[i].bytes);
    print_size("total", plan->total);
}
