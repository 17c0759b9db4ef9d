// run_state.c - writes and reads state.json by a table of its numbers; see run_state.h.
#define _POSIX_C_SOURCE 200809L
#include "data/run_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/options/read.h"

// ---- the numbers

// int64_t, int, a double, from 0 to `most`; 64 bits; a double, null where it is NaN.
typedef enum Kind { WHOLE, INTEGER, DOUBLE, BITS, LOSS } Kind;

#define AT(field) offsetof(RunState, field)

// n numbers, one after the other; if count is not 0, as many as that int of the state says. One is no array.
static const struct Member {
    const char* name;
    Kind kind;
    size_t at;
    int n;
    size_t count;
    double most;  // the most steps that --steps can ask for, and more pieces than a corpus has
} members[] = {
    {"step", WHOLE, AT(step), 1, 0, 1e12},
    {"ranks", INTEGER, AT(ranks), 1, 0, 1 << 20},
    {"epoch", WHOLE, AT(position.epoch), 1, 0, 1e12},
    {"index", WHOLE, AT(position.index), 1, 0, 1e15},
    {"loss_hash", BITS, AT(loss_hash), 1, 0, 0},
    {"corpus", BITS, AT(corpus), 1, 0, 0},
    {"content", BITS, AT(content), 1, 0, 0},
    {"val_content", BITS, AT(val_content), 1, 0, 0},
    {"val_loss", LOSS, AT(val_loss), 1, 0, 0},
    {"loss", LOSS, AT(loss), 1, 0, 0},
    {"corpora", WHOLE, AT(position.corpora), MOST_CORPORA * sizeof(CorpusPosition) / sizeof(int64_t), 0, 1e15},
    {"balanced", INTEGER, AT(balanced), 1, 0, MOST_BALANCED},
    {"pruned", DOUBLE, AT(pruned), 0, AT(balanced), 0.999},
    {"heads", DOUBLE, AT(heads), 0, AT(balanced), 1e12},
    {"tiles", DOUBLE, AT(tiles), 0, AT(balanced), 1e12},
    {"v", DOUBLE, AT(v), 0, AT(balanced), 1e12},
    {"head_work", DOUBLE, AT(head_work), 0, AT(balanced), 1e12},
    {"measured", INTEGER, AT(measured), 1, 0, MOST_MEASURES},
    {"measures", DOUBLE, AT(measures), 0, AT(measured), 1e300},
    {"fp8", INTEGER, AT(fp8), 1, 0, 2 * MOST_BALANCED},
    {"amaxes", DOUBLE, AT(amaxes), 0, AT(fp8), 1e300},
    {"base", BITS, AT(base), 1, 0, 0},
};
enum { NEW_MEMBERS = 5 };  // the last ones: files of older programs lack them

static int count_of(const struct Member* m, const RunState* s) {
    return m->count ? *(const int*)((const char*)s + m->count) : m->n;
}

static char* place(const struct Member* m, const RunState* s, int i) {
    return (char*)s + m->at + (size_t)i * (m->kind == INTEGER ? sizeof(int) : sizeof(int64_t));
}

static void put_member(FILE* out, const struct Member* m, const RunState* s) {
    int n = count_of(m, s);
    fprintf(out, "%s\"%s\": %s", m == members ? "{" : ",\n  ", m->name, m->n == 1 ? "" : "[");
    for (int i = 0; i < n; i++) {
        const char *at = place(m, s, i), *comma = i ? ", " : "";
        if (m->kind == WHOLE) fprintf(out, "%s%" PRId64, comma, *(const int64_t*)at);
        else if (m->kind == INTEGER) fprintf(out, "%s%d", comma, *(const int*)at);
        else if (m->kind == BITS) fprintf(out, "%s%" PRIu64, comma, *(const uint64_t*)at);
        else if (isfinite(*(const double*)at)) fprintf(out, "%s%.17g", comma, *(const double*)at);
        else fprintf(out, "%snull", comma);
    }
    if (m->n != 1) fputc(']', out);
}

// Reads v into `to`. 0, or -1: it is another value.
static int parse_number(const struct Member* m, const JsonValue* v, char* to) {
    int64_t whole;
    double real = NAN;
    if (m->kind == BITS) return json_uint64(v, (uint64_t*)to);
    if (m->kind == WHOLE || m->kind == INTEGER) {
        if (json_int64(v, &whole) || whole < 0 || whole > (int64_t)m->most) return -1;
        if (m->kind == WHOLE) *(int64_t*)to = whole;
        else *(int*)to = (int)whole;
        return 0;
    }
    int failed = json_double(v, &real), is_null = v && v->type == JSON_NULL;
    *(double*)to = real;
    return m->kind == LOSS ? failed && !is_null : !(real >= 0 && real <= m->most);
}

static int parse_member(RunState* s, const struct Member* m, const JsonValue* root, Err err) {
    static const char* const words[] = {"whole numbers", "whole numbers", "numbers", "whole numbers of 64 bits",
                                        "numbers or null"};
    char range[40] = "";
    const JsonValue* value = json_get(root, m->name);
    int n = count_of(m, s);
    if (!value && m >= members + COUNT(members) - NEW_MEMBERS && (m->n == 1 || n == 0)) return 0;
    int failed = m->n == 1 ? 0 : !value || value->type != JSON_ARRAY || value->n != n;
    for (int i = 0; i < n && !failed; i++)
        failed = parse_number(m, m->n == 1 ? value : json_at(value, i), place(m, s, i));
    if (!failed) return 0;
    if (m->most > 0) snprintf(range, sizeof range, " from 0 to %.15g", m->most);
    return fail(err, "state.json: expected %d %s%s as \"%s\", found %s; is it of another version?", n, words[m->kind],
                range, m->name, value ? "another value" : "none");
}

// ---- the options

// The state on its way into text.
typedef struct Writer {
    FILE* out;
    int options;
} Writer;

static void put_option(void* context, const char* name, const char* value) {
    Writer* w = context;
    fputs(w->options++ ? ",\n    [" : "\n    [", w->out);
    json_put_bytes(w->out, name, strlen(name));
    fputs(", ", w->out);
    json_put_bytes(w->out, value, strlen(value));
    fputc(']', w->out);
}

static int restore_options(Config* config, const JsonValue* root, Err err) {
    const JsonValue* options = json_get(root, "options");
    if (!options || options->type != JSON_ARRAY)
        return fail(err, "state.json: expected an array \"options\", found none");
    int i = 0;
    for (const JsonValue* pair = json_elements(options); pair; pair = json_next(pair), i++) {
        const JsonValue *name = json_at(pair, 0), *value = json_at(pair, 1);
        char* strings = name && value ? config_string(config, name->length + value->length + 2) : NULL;
        if (name && value && !strings) return fail(err, "state.json: no memory for option %d", i);
        if (!strings || json_string(name, strings) < 0 || json_bytes(value, strings + name->length + 1) < 0)
            return fail(err, "state.json: option %d is not a pair of strings", i);
        if (config_restore(config, strings, strings + name->length + 1, err)) return -1;
    }
    return 0;
}

// ---- both

char* run_state_text(const RunState* s, const Config* config) {
    char* text = NULL;
    size_t n = 0;
    Writer w = {open_memstream(&text, &n), 0};
    if (!w.out) return NULL;
    for (int i = 0; i < COUNT(members); i++) put_member(w.out, &members[i], s);
    fprintf(w.out, ",\n  \"options\": [");
    config_visit(config, put_option, &w);
    fprintf(w.out, "]}\n");
    return json_end(w.out, &text);
}

static int parse_state(RunState* s, Config* config, const JsonValue* root, Err err) {
    for (int i = 0; i < COUNT(members); i++)
        if (parse_member(s, &members[i], root, err)) return -1;
    return restore_options(config, root, err);
}

int run_state_parse(RunState* state, Config* config, const char* text, size_t n, Err err) {
    Json json;
    memset(state, 0, sizeof *state);
    if (json_parse(&json, text, n, err)) return -1;
    int failed = parse_state(state, config, json.values, err);
    json_free(&json);
    return failed ? -1 : 0;
}

int run_state_check(const RunState* state, const Config* config, Err err) {
    Config found;
    RunState again;
    char *name[] = {"", NULL}, *text = run_state_text(state, config), *other = NULL;
    if (!text) return fail(err, "no memory for state.json");
    int failed = config_parse(&found, 1, name, err);
    if (!failed) failed = run_state_parse(&again, &found, text, strlen(text), err);
    if (!failed && !(other = run_state_text(&again, &found))) failed = fail(err, "no memory for state.json");
    if (!failed && strcmp(text, other)) {
        size_t line = 0;  // where the line begins that differs
        for (size_t i = 0; text[i] == other[i]; i++)
            if (text[i] == '\n') line = i + 1;
        failed = fail(err, "state.json would not keep %.*s", (int)MIN(strcspn(text + line, "\n"), 200u), text + line);
    }
    config_free(&found);
    free(text);
    free(other);
    return failed;
}
