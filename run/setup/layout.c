// layout.c - who runs which layers: what --layout or the options say, settled before ranks are joined.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "run/run.h"

// What rank 0 has read of --layout.
typedef struct LayoutFile {
    int failed, capacity;
    Layout layout;
    char words[ERR_BYTES];
} LayoutFile;

static int is_text(const char* layout) { return strchr(layout, ';') && access(layout, F_OK); }

static void read_layout(LayoutFile* file, const Run* run, const Layout* otherwise) {
    enum { MOST = 1 << 16 };
    size_t n = 0;
    char why[ERR_BYTES];
    const char* path = run->config.layout;
    if (is_text(path)) {
        file->failed = layout_parse(&file->layout, otherwise, path, strlen(path), file->words);
        return;
    }
    char* text = disk_read_file(path, MOST, &n, file->words);
    file->failed = !text;
    if (text && layout_parse(&file->layout, otherwise, text, n, why))
        file->failed = fail(file->words, "%s: %s", path, why);
    free(text);
}

// As text in one line, which is saved with the run: a file may change, and another search may find another one.
static void keep_layout(Run* run) {
    static char text[LAYOUT_TEXT];
    size_t n = layout_print(&run->model.ranks->layout, text, sizeof text);
    char *line = config_string(&run->config, 2 * n + 1), *to = line;
    if (!line || n >= sizeof text) die("no memory for the text of a layout");
    for (const char* c = text; *c; c++) {
        if (*c != '\n') *to++ = *c;
        else if (c[1]) *to++ = ';', *to++ = ' ', c += strspn(c + 1, " ");
    }
    *to = 0;
    run->settled.layout = line;
}

// That of --layout, or what --tp, --pp, --zero and --recompute say.
void run_settle_layout(Run* run) {
    static LayoutFile file;
    char err[ERR_BYTES];
    const Config* c = &run->config;
    Model* m = &run->model;
    Comm* world = m->world;
    run->settled = (Settled){c->capacity, c->tp, c->pp, c->layout, c->strategies};
    if (c->memory > 0) run->cluster->available = (HostMemory){(size_t)c->memory, "of --memory"};
    if (c->pp > m->whole.L)
        die("--pp %d: expected at most as many stages as layers, found %d layers; try --pp %d", c->pp, m->whole.L,
            m->whole.L);
    m->ranks->layout = layout_even(&m->whole, c->tp, c->pp, c->zero, (Recompute)config_choice(c, "--recompute"));
    if (c->layout && strcmp(c->layout, "hydraulis") != 0) {
        int is_auto = !strcmp(c->layout, "auto");
        if (is_auto) run_measure_limit(run);
        if (world->rank == 0 && is_auto) file.failed = run_find_layout(run, &file.layout, file.words);
        else if (world->rank == 0) read_layout(&file, run, &m->ranks->layout);
        file.capacity = run->settled.capacity;
        if (world->table->broadcast_host(world, &file, sizeof file, 0, err)) die("%s", err);
        if (file.failed) die("--layout: %s", file.words);
        m->ranks->layout = file.layout;
        run->settled.capacity = file.capacity;  // that auto has searched with
    }
    int is_saved = c->layout && !config_was_given(c, "--layout");
    if (layout_check(&m->ranks->layout, &m->whole, world->size, err))
        die("%s: %s%s",
            is_saved    ? "the saved layout"
            : c->layout ? c->layout
            : c->pp > 1 ? "--pp"
                        : "--tp",
            err, is_saved ? "; --tp 1 --pp 1 goes on without" : "");
    if (c->layout && strcmp(c->layout, "hydraulis") != 0) keep_layout(run);
    run->settled.tp = m->ranks->layout.tp;
    run->settled.pp = m->ranks->layout.stages;
}

// What runs of like layers have of a rank's bytes, and what is left: buffers, scratch, what all layers share.
static void print_layers(Run* run, int s, size_t all) {
    static LayerBytes bytes[MOST_LAYERS + 1];
    const Layout* layout = &run->model.ranks->layout;
    int first = layout_first(layout, s), end = layout_first(layout, s + 1), L = end - first;
    double mib = 1 << 20, left = (double)all;
    run_layer_bytes(bytes, run, layout, s, run->settled.capacity);
    for (int l = first, n; l < end; l += n) {
        const LayerLayout* row = &layout->layer[l];
        const LayerBytes* each = &bytes[l - first];
        n = layout_run(layout, l);
        printf("  layers %d to %d, tp %d, zero %d, recompute %s: %d x (%.1f MiB of states, %.1f of activations)\n", l,
               l + n - 1, row->tp, row->zero, recompute_names[row->recompute], n, (double)each->states / mib,
               (double)each->activations / mib);
        left -= n * (double)(each->states + each->activations);
    }
    if (bytes[L].states) printf("  embedding and classifier: %.1f MiB of states\n", (double)bytes[L].states / mib);
    printf("  beside them: %.1f MiB\n", (left - (double)bytes[L].states) / mib);
}

void run_check_layout(Run* run) {
    const Model* m = &run->model;
    char text[LAYOUT_TEXT];
    int ranks = m->world->size / m->stages;
    size_t* bytes = (size_t*)run_ask_all(run, m->world, &run->books->memory_bytes, sizeof run->books->memory_bytes);
    for (int s = 0; s < m->stages && m->world->rank == 0; s++) {
        int first = layout_first(&m->ranks->layout, s), end = layout_first(&m->ranks->layout, s + 1);
        size_t most = 0;
        for (int r = 0; r < ranks; r++) most = MAX(most, bytes[s * ranks + r]);
        printf("stage %d: ranks %d to %d, layers %d to %d, %.1f MiB a rank, %d rounds in flight\n", s, s * ranks,
               (s + 1) * ranks - 1, first, end - 1, (double)most / (1 << 20), pipeline_slots(m->stages, s));
        print_layers(run, s, bytes[s * ranks]);
    }
    free(bytes);
    if (m->world->rank == 0) run_predict_layout(run);
    layout_print(&m->ranks->layout, text, sizeof text);
    printf("a layout that --layout takes:\n%s", text);
}
