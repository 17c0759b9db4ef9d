// what_if_show.c - clusters, or the replays of a run, as tables and as a page; see what_if.h.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/base/disk.h"
#include "plan/show/explain.h"
#include "run/what_if/what_if.h"

extern const char run_what_if_what_if_js[];

enum { NAME_CELLS = 16 };  // of a cluster's name

#define GIB (1 << 30)

// ---- on the terminal

static void put_number(TextTable* t, double x, const char* format) {
    if (isnan(x)) text_cells(t, "\t-");
    else text_cells(t, format, x);
}

static void print_clusters(const WhatIfs* all) {
    TextTable t = {0};
    int priced = all->n && !isnan(all->cluster[0].price);
    text_cells(&t, "cluster\tms a step\ttokens/s\tof limit\tGiB of room%s\tbound by\n", priced ? "\t$/1e9 tokens" : "");
    for (int i = 0; i < all->n; i++) {
        const WhatIf* x = &all->cluster[i];
        text_cells(&t, "%.*s", NAME_CELLS, x->name);
        if (x->ms == INFINITY) {
            text_cells(&t, "\tno layout fits: %.3g GiB at least, %.3g there\n", x->bytes / GIB, x->room / GIB);
            continue;
        }
        text_cells(&t, "\t%.1f\t%.0f\t%.1f %%\t%.3g of %.3g", x->ms, 1e3 * x->tokens / x->ms, 100 * x->limit / x->ms,
                   x->bytes / GIB, x->room / GIB);
        if (priced) text_cells(&t, "\t%.2f", billion_price(x, all->ranks));
        text_cells(&t, "\t%s\n", x->bound);
    }
    text_table(stdout, &t, "");
}

static void print_changes(const WhatIfs* all) {
    TextTable t = {0};
    text_cells(&t, "one change wins");
    for (int k = 0; k < N_CHANGES; k++) text_cells(&t, "\t%s", change_names[k]);
    for (int i = 0; i < all->n; i++) {
        const WhatIf* x = &all->cluster[i];
        text_cells(&t, "\n%.*s", NAME_CELLS, x->name);
        for (int k = 0; k < N_CHANGES; k++)
            if (x->ms == INFINITY && !isnan(x->gain[k])) text_cells(&t, x->gain[k] > 0 ? "\tfits" : "\tfits not");
            else put_number(&t, 100 * x->gain[k], "\t%.1f %%");
    }
    text_cells(&t, "\n");
    printf("\n");
    text_table(stdout, &t, "");
}

static void print_goodput(const WhatIfs* all) {
    TextTable t = {0};
    const Config* c = &all->run->config;
    if (c->mtbf <= 0) return;
    text_cells(&t, "where ranks die\tdeaths an hour\ts a save\tsteps between saves\tminutes\tgoodput\n");
    for (int i = 0; i < MAX(all->n, 1); i++) {
        const WhatIf* x = &all->cluster[i];
        const Goodput* g = &x->goodput;
        if (x->ms == INFINITY) continue;
        text_cells(&t, "%.*s\t%.3g\t%.3g\t%.0f\t%.1f\t%.2f %%\n", NAME_CELLS, x->name, g->deaths, x->save, g->every,
                   g->every * x->ms / 6e4, 100 * g->share);
    }
    printf("\n");
    text_table(stdout, &t, "");
}

static void print_layouts(const WhatIfs* all) {
    static char line[LAYOUT_TEXT];
    for (int i = 0, some = 0; i < all->n; i++) {
        const WhatIf* x = &all->cluster[i];
        if (x->ms == INFINITY || !layout_print_line(&x->layout, line, sizeof line)) continue;
        if (some++ == 0) printf("\n");
        say(stdout, "%s: --capacity %d --layout \"%s\"", x->name, x->N, line);
    }
}

static void print_replayed(const WhatIfs* all) {
    TextTable t = {0};
    double before = all->replayed[0].ms, measured = all->cluster->ms;
    text_cells(&t, "%d logged steps\tms a step\tof them\n", all->steps);
    text_cells(&t, "measured\t%.1f\t%.3fx\n", measured, measured / before);
    for (int i = 0; i < all->n_replayed; i++) {
        const Replayed* r = &all->replayed[i];
        if (r->ms < INFINITY) text_cells(&t, "%s\t%.1f\t%.3fx\n", r->name, r->ms, r->ms / before);
        else text_cells(&t, "%s\t-\t-\t%.40s\n", r->name, r->words);
    }
    text_table(stdout, &t, "");
}

// ---- the page: a line of JSON for what is asked, and one for each cluster or replay

static void put_values(FILE* out, const char* name, const double* x, int n) {
    char text[32];
    fprintf(out, ",\"%s\":[", name);
    for (int i = 0; i < n; i++) fprintf(out, "%s%s", i ? "," : "", runlog_number(x[i], 8, text));
    fputc(']', out);
}

static void put_names(FILE* out, const char* name, const char* const* names, int n) {
    fprintf(out, ",\"%s\":[", name);
    for (int i = 0; i < n; i++) fputs(i ? "," : "", out), page_string(out, names[i]);
    fputc(']', out);
}

static void put_cluster(FILE* out, const WhatIf* x, int ranks) {
    static char line[LAYOUT_TEXT];
    char text[32];
    const Goodput* g = &x->goodput;
    const struct {
        const char* name;
        double x;
    } numbers[] = {{"ms", x->ms},       {"tokens", x->tokens}, {"limit", x->limit},
                   {"bytes", x->bytes}, {"room", x->room},     {"price", billion_price(x, ranks)},
                   {"capacity", x->N},  {"save", x->save},     {"deaths", g->deaths},
                   {"every", g->every}, {"goodput", g->share}};
    fputs("{\"cluster\":", out);
    page_string(out, x->name);
    for (int i = 0; i < COUNT(numbers); i++)
        fprintf(out, ",\"%s\":%s", numbers[i].name, runlog_number(numbers[i].x, 8, text));
    put_values(out, "part", x->part, N_PARTS);
    put_values(out, "gain", x->gain, N_CHANGES);
    fputs(",\"bound\":", out);
    page_string(out, x->bound);
    fputs(",\"layout\":", out);
    page_string(out, x->ms < INFINITY && layout_print_line(&x->layout, line, sizeof line) ? line : "");
    fputs("}\n", out);
}

static void put_page(FILE* out, const WhatIfs* all, const char* title) {
    char text[32];
    page_begin(out, "");
    fputs("{\"title\":", out);
    page_string(out, title);
    fprintf(out, ",\"ranks\":%d,\"measured\":%s", all->ranks, runlog_number(all->n ? NAN : all->cluster->ms, 8, text));
    put_names(out, "parts", part_names, N_PARTS);
    put_names(out, "changes", change_names, N_CHANGES);
    fputs("}\n", out);
    for (int i = 0; i < all->n; i++) put_cluster(out, &all->cluster[i], all->ranks);
    for (int i = 0; i < all->n_replayed; i++) {
        fputs("{\"replayed\":", out);
        page_string(out, all->replayed[i].name);
        fputs(",\"words\":", out);
        page_string(out, all->replayed[i].words);
        fprintf(out, ",\"ms\":%s}\n", runlog_number(all->replayed[i].ms, 8, text));
    }
    page_end(out, run_what_if_what_if_js);
}

static void write_page(const WhatIfs* all, const char* title) {
    const Config* c = &all->run->config;
    char path[CHECKPOINT_PATH] = "what-if.html", err[ERR_BYTES];
    if (c->out && disk_make_dirs(c->out, err)) die("--what-if: %s", err);
    if (c->out) run_path(path, c->out, "what-if.html");
    FILE* file = fopen(path, "w");
    if (file) put_page(file, all, title);
    int failed = !file || ferror(file);
    if (file && fclose(file)) failed = 1;
    if (failed) die("%s: cannot write: %s", path, strerror(errno));
    printf("\n");
    say(stdout, "the same with bars: %s", path);
}

void what_if_show(const WhatIfs* all) {
    char title[256], ranks[64];
    const Run* run = all->run;
    const Shape* s = &run->model.whole;
    double millions = (double)shape_param_count(s) / 1e6;
    snprintf(title, sizeof title, "%s of %.*f million parameters on %s, %.0f tokens a step in documents of up to %d",
             arch_table[s->arch].title, millions < 100, millions, text_many(all->ranks, "rank", ranks),
             all->cluster->tokens, run->config.context);
    say(stdout, "%s", title);
    printf("\n");
    if (all->n) print_clusters(all), print_changes(all);
    else print_replayed(all);
    print_goodput(all);
    print_layouts(all);
    write_page(all, title);
}
