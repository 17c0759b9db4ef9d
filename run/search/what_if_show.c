// what_if_show.c - clusters, or the replays of a run, as tables on a terminal, and the same with bars as a page; see
// what_if.h. After its title the page has a line of JSON for each table, a list of rows of cells, and for the bars
// before it: {"bars": title, "words": what they say, "whole": value of a full bar, or 0, "legend": [names],
// "rows": [[name, [values], words], ...]}.
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "data/runlog.h"
#include "plan/base/disk.h"
#include "plan/show/page.h"
#include "run/search/what_if.h"

extern const char run_search_what_if_js[];

enum { NAME_CELLS = 16 };  // of a cluster's name

static const char* const part_names[N_PARTS] = {"computing",     "uneven work",       "links",
                                                "recomputation", "waiting of stages", "fixed costs"};
static const char* const change_names[N_CHANGES] = {"twice the links", "twice the memory", "no slow rank"};

// Returns the $ of 1e9 tokens at this price of a rank-hour, all ranks being paid all the time; goodput raises it.
static double billion_price(const WhatIf* x, int ranks) {
    double share = x->goodput.share > 0 ? x->goodput.share : 1;
    return x->price * ranks * (1e9 / x->tokens * x->ms / 1e3 / 3600) / share;
}

// ---- parts of the page

// Begins bars. whole: the value of a full bar; 0: the longest bar's.
static void begin_bars(FILE* page, const char* title, const char* words, double whole, const char* const* legend,
                       int n) {
    fputs("{\"bars\":", page), page_string(page, title);
    fputs(",\"words\":", page), page_string(page, words);
    fprintf(page, ",\"whole\":%g,\"legend\":[", whole);
    for (int i = 0; i < n; i++) fputs(i ? "," : "", page), page_string(page, legend[i]);
    fputs("],\"rows\":[[]", page);
}

static void put_bar(FILE* page, const char* name, const double* values, int n, const char* words) {
    char text[32];
    fputs(",[", page), page_string(page, name), fputs(",[", page);
    for (int i = 0; i < n; i++) fprintf(page, "%s%s", i ? "," : "", runlog_number(values[i], 8, text));
    fputs("],", page), page_string(page, words), fputc(']', page);
}

static void end_bars(FILE* page) { fputs("]}\n", page); }

// Puts a table onto the page, and onto the terminal after an empty line.
static void show_table(FILE* page, TextTable* t) {
    static char cell[LAYOUT_TEXT];
    fflush(t->rows);
    fputs("{\"table\":[[", page);
    for (const char *at = t->text, *end; at && *at; at = end + 1) {
        end = at + strcspn(at, "\t\n");
        snprintf(cell, sizeof cell, "%.*s", (int)(end - at), at);
        page_string(page, cell);
        fputs(*end == '\t' ? "," : end[1] ? "],[" : "]]}\n", page);
    }
    printf("\n");
    text_table(stdout, t, "");
}

// ---- clusters

static void show_steps(FILE* page, const WhatIfs* all) {
    TextTable t = {0};
    char words[32];
    int priced = !isnan(all->cluster->price);
    begin_bars(page, "A step",
               "What its time goes into, of the stage that takes longest. Computing: all work divided over all ranks, "
               "which no layout beats.",
               0, part_names, N_PARTS);
    text_cells(&t, "cluster\tms a step\ttokens/s\tof limit\tGiB of room%s\tbound by\n", priced ? "\t$/1e9 tokens" : "");
    for (int i = 0; i < all->n; i++) {
        const WhatIf* x = &all->cluster[i];
        double gib = 1 << 30;
        text_cells(&t, "%.*s", NAME_CELLS, x->name);
        if (x->ms == INFINITY && x->bytes > x->room)
            text_cells(&t, "\tno layout fits: %.3g GiB at least, %.3g there\n", x->bytes / gib, x->room / gib);
        else if (x->ms == INFINITY) text_cells(&t, "\t%s\n", x->words);
        if (x->ms == INFINITY) continue;
        snprintf(words, sizeof words, "%.1f ms", x->ms);
        put_bar(page, x->name, x->part, N_PARTS, words);
        text_cells(&t, "\t%.1f\t%.0f\t%.1f %%\t%.3g of %.3g", x->ms, 1e3 * x->tokens / x->ms, 100 * x->limit / x->ms,
                   x->bytes / gib, x->room / gib);
        if (priced) text_cells(&t, "\t%.2f", billion_price(x, all->ranks));
        text_cells(&t, "\t%s\n", x->bound);
    }
    end_bars(page), show_table(page, &t);
}

static void show_changes(FILE* page, const WhatIfs* all) {
    TextTable t = {0};
    char name[128], words[32];
    begin_bars(page, "One change", "How much sooner a step would end, with the best layout of the changed cluster.", 1,
               NULL, 0);
    text_cells(&t, "one change wins");
    for (int k = 0; k < N_CHANGES; k++) text_cells(&t, "\t%s", change_names[k]);
    for (int i = 0; i < all->n; i++) {
        const WhatIf* x = &all->cluster[i];
        text_cells(&t, "\n%.*s", NAME_CELLS, x->name);
        for (int k = 0; k < N_CHANGES; k++) {
            snprintf(words, sizeof words, "%.1f %%", 100 * x->gain[k]);
            if (x->ms == INFINITY) snprintf(words, sizeof words, x->gain[k] > 0 ? "fits" : "fits not");
            text_cells(&t, "\t%s", isnan(x->gain[k]) ? "-" : words);
            snprintf(name, sizeof name, "%s, %s", x->name, change_names[k]);
            if (!isnan(x->gain[k])) put_bar(page, name, &x->gain[k], 1, words);
        }
    }
    text_cells(&t, "\n");
    end_bars(page), show_table(page, &t);
}

static void show_goodput(FILE* page, const WhatIfs* all) {
    TextTable t = {0};
    if (all->run->config.mtbf <= 0) return;
    text_cells(&t, "where ranks die\tdeaths an hour\ts a save\tsteps between saves\tminutes\tgoodput\n");
    for (int i = 0; i < MAX(all->n, 1); i++) {
        const WhatIf* x = &all->cluster[i];
        const Goodput* g = &x->goodput;
        if (x->ms < INFINITY)
            text_cells(&t, "%.*s\t%.3g\t%.3g\t%.0f\t%.1f\t%.2f %%\n", NAME_CELLS, x->name, g->deaths, x->save, g->every,
                       g->every * x->ms / 6e4, 100 * g->share);
    }
    show_table(page, &t);
}

// Shows the layouts as options that a run takes.
static void show_layouts(FILE* page, const WhatIfs* all) {
    static char line[LAYOUT_TEXT];
    TextTable t = {0};
    for (int i = 0; i < all->n; i++) {
        const WhatIf* x = &all->cluster[i];
        if (x->ms < INFINITY && layout_print_line(&x->layout, line, sizeof line))
            text_cells(&t, "%s%.*s\t--capacity %d --layout \"%s\"\n", t.rows ? "" : "cluster\n", NAME_CELLS, x->name,
                       x->N, line);
    }
    if (t.rows) show_table(page, &t);
}

// ---- a run

static void show_replayed(FILE* page, const WhatIfs* all) {
    TextTable t = {0};
    char words[32];
    double before = all->cluster[1].ms, measured = all->cluster->ms;
    begin_bars(page, "A step in the mean", "The logged steps, played on the clock, under one thing that differs.", 0,
               NULL, 0);
    text_cells(&t, "%d logged steps\tms a step\tas played\nmeasured\t%.1f\t%.3fx\n", all->steps, measured,
               measured / before);
    for (const WhatIf* r = all->cluster + 1; r <= all->cluster + all->n_replayed; r++) {
        snprintf(words, sizeof words, "%.1f ms", r->ms);
        if (r->ms < INFINITY) put_bar(page, r->name, &r->ms, 1, words);
        if (r->ms < INFINITY) text_cells(&t, "%s\t%.1f\t%.3fx\n", r->name, r->ms, r->ms / before);
        else text_cells(&t, "%s\t%.60s\n", r->name, r->words);
    }
    end_bars(page), show_table(page, &t);
}

void what_if_show(const WhatIfs* all) {
    char title[256], ranks[64], path[CHECKPOINT_PATH] = "what-if.html", err[ERR_BYTES], *text;
    size_t bytes;
    const Config* c = &all->run->config;
    const Shape base = shape_base(&all->run->model.whole), *s = &base;
    double millions = (double)shape_param_count(s) / 1e6;
    if (c->out && disk_make_dirs(c->out, err)) die("what-if: %s", err);
    if (c->out) run_path(path, c->out, "what-if.html");
    FILE* page = open_memstream(&text, &bytes);
    if (!page) die("what-if: no memory for a page");
    snprintf(title, sizeof title, "%s of %.*f million parameters on %s, %.0f tokens a step in documents of up to %d",
             arch_table[s->arch].title, millions < 100, millions, text_many(all->ranks, "rank", ranks),
             all->cluster->tokens, c->context);
    say(stdout, "%s", title);
    page_begin(page, "");
    fputs("{\"title\":", page), page_string(page, title), fputs("}\n", page);
    if (all->n) show_steps(page, all), show_changes(page, all);
    else show_replayed(page, all);
    show_goodput(page, all);
    show_layouts(page, all);
    page_end(page, run_search_what_if_js);
    if (disk_put_stream(path, 0, page, &text, &bytes, err)) die("what-if: %s", err);
    printf("\n");
    say(stdout, "the same with bars: %s", path);
}
