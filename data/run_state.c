// run_state.c - writes and reads state.json; see run_state.h.
#include "data/run_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"

// As many steps as --steps can ask for; so many pieces no corpus has.
static const int64_t MOST_STEPS = 1000000000000, MOST_PIECES = 1000000000000000;

// The state on its way into text.
typedef struct Writer {
    FILE* out;
    int options, failed;
} Writer;

static void put_option(void* context, const char* name, const char* value) {
    Writer* w = (Writer*)context;
    const char* const pair[] = {name, value};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(pair[i]);
        char* quoted = (char*)malloc(6 * n + 3);
        if (quoted) json_quote_bytes(quoted, pair[i], n);
        else w->failed = 1;
        fprintf(w->out, "%s%s", i ? ", " : w->options++ ? ",\n    [" : "\n    [", quoted ? quoted : "");
        free(quoted);
    }
    fputc(']', w->out);
}

static void put_number(FILE* out, double x) {
    if (isfinite(x)) fprintf(out, "%.17g", x);
    else fprintf(out, "null");
}

char* run_state_text(const RunState* s, const Config* config) {
    char* text = NULL;
    size_t n = 0;
    Writer w = {open_memstream(&text, &n), 0, 0};
    if (!w.out) return NULL;
    fprintf(w.out,
            "{\"step\": %" PRId64 ", \"epoch\": %" PRId64 ", \"index\": %" PRId64 ", \"loss_hash\": %" PRIu64
            ", \"corpus\": %" PRIu64 ", \"content\": %" PRIu64 ", \"val_content\": %" PRIu64 ", \"val_loss\": ",
            s->step, s->position.epoch, s->position.index, s->loss_hash, s->corpus, s->content, s->val_content);
    put_number(w.out, s->val_loss);
    fprintf(w.out, ", \"loss\": ");
    put_number(w.out, s->loss);
    fprintf(w.out, ",\n  \"corpora\": [");
    for (int c = 0; c < MOST_CORPORA; c++) {
        const CorpusPosition* at = &s->position.corpora[c];
        fprintf(w.out, "%s[%" PRId64 ", %" PRId64 ", %" PRId64 "]", c ? ", " : "", at->epoch, at->index, at->tokens);
    }
    fprintf(w.out, "],\n  \"balance_units\": [");
    for (int r = 0; r < s->balanced; r++)
        fprintf(w.out, "%s[%.17g, %.17g, %.17g, %.17g, %.17g]", r ? ", " : "", s->pruned[r], s->heads[r], s->tiles[r],
                s->v[r], s->head_work[r]);
    fprintf(w.out, "],\n  \"division\": [");
    for (int r = 0; r < s->divided; r++)
        fprintf(w.out, "%s[%d, %d]", r ? ", " : "", s->own_heads[r], s->own_hidden[r]);
    fprintf(w.out, "],\n  \"options\": [");
    config_visit(config, put_option, &w);
    fprintf(w.out, "]}\n");
    int failed = w.failed | ferror(w.out);
    if (!fclose(w.out) && !failed) return text;
    free(text);
    return NULL;
}

// Files of older versions have none, or "balance" in other units: the run decides anew.
static int parse_balance(RunState* s, const Json* json, char* err, size_t errlen) {
    const JsonValue* rows = json_get(json, json->values, "balance_units");
    if (!rows) return 0;
    if (rows->type != JSON_ARRAY || rows->n > MOST_TP)
        return fail(err, errlen, "state.json: expected an array \"balance_units\" of at most %d ranks", MOST_TP);
    for (int r = 0; r < rows->n; r++) {
        const JsonValue* row = json_at(json, rows, r);
        double* const values[] = {&s->pruned[r], &s->heads[r], &s->tiles[r], &s->v[r], &s->head_work[r]};
        for (int i = 0; i < COUNT(values); i++)
            if (json_double(json_at(json, row, i), values[i]) || !(*values[i] >= 0) || *values[i] > 1e12)
                return fail(err, errlen, "state.json: expected five numbers >= 0 in \"balance_units\" of rank %d", r);
        if (s->pruned[r] >= 1)
            return fail(err, errlen, "state.json: \"balance_units\": rank %d leaves out everything", r);
    }
    s->balanced = rows->n;
    return 0;
}

// Files of older versions have none.
static int parse_division(RunState* s, const Json* json, char* err, size_t errlen) {
    const JsonValue* rows = json_get(json, json->values, "division");
    if (!rows) return 0;
    if (rows->type != JSON_ARRAY || rows->n > MOST_TP)
        return fail(err, errlen, "state.json: expected an array \"division\" of at most %d ranks", MOST_TP);
    for (int r = 0; r < rows->n; r++)
        for (int i = 0; i < 2; i++) {
            int64_t n;
            if (json_int64(json_at(json, json_at(json, rows, r), i), &n) || n < 0 || n > 1 << 20)
                return fail(err, errlen, "state.json: expected two whole numbers in \"division\" of rank %d", r);
            *(i ? &s->own_hidden[r] : &s->own_heads[r]) = (int)n;
        }
    s->divided = rows->n;
    return 0;
}

// Files of older versions have none.
static int parse_corpora(RunState* s, const Json* json, char* err, size_t errlen) {
    const JsonValue* rows = json_get(json, json->values, "corpora");
    if (!rows) return 0;
    if (rows->type != JSON_ARRAY || rows->n > MOST_CORPORA)
        return fail(err, errlen, "state.json: expected an array \"corpora\" of at most %d", MOST_CORPORA);
    for (int c = 0; c < rows->n; c++) {
        CorpusPosition* at = &s->position.corpora[c];
        int64_t* const values[] = {&at->epoch, &at->index, &at->tokens};
        for (int i = 0; i < COUNT(values); i++)
            if (json_int64(json_at(json, json_at(json, rows, c), i), values[i]) || *values[i] < 0 ||
                *values[i] > MOST_PIECES)
                return fail(err, errlen, "state.json: expected three whole numbers in \"corpora\", number %d", c);
    }
    return 0;
}

static int parse_count(const Json* json, const char* name, int64_t most, int64_t* count, char* err, size_t errlen) {
    if (json_int64(json_get(json, json->values, name), count) == 0 && *count >= 0 && *count <= most) return 0;
    return fail(err, errlen, "state.json: expected a whole number \"%s\" from 0 to %" PRId64 ", found %s", name, most,
                json_get(json, json->values, name) ? "another value" : "none");
}

static int parse_hash(const Json* json, const char* name, uint64_t* hash, char* err, size_t errlen) {
    if (json_uint64(json_get(json, json->values, name), hash) == 0) return 0;
    return fail(err, errlen, "state.json: expected a whole number \"%s\" of 64 bits", name);
}

static int parse_progress(RunState* s, const Json* json, char* err, size_t errlen) {
    if (json_double(json_get(json, json->values, "val_loss"), &s->val_loss)) s->val_loss = NAN;
    if (json_double(json_get(json, json->values, "loss"), &s->loss)) s->loss = NAN;
    if (json_get(json, json->values, "content") && parse_hash(json, "content", &s->content, err, errlen)) return -1;
    if (json_get(json, json->values, "val_content") && parse_hash(json, "val_content", &s->val_content, err, errlen))
        return -1;
    return parse_count(json, "step", MOST_STEPS, &s->step, err, errlen) ||
           parse_count(json, "epoch", MOST_STEPS, &s->position.epoch, err, errlen) ||
           parse_count(json, "index", MOST_PIECES, &s->position.index, err, errlen) ||
           parse_hash(json, "loss_hash", &s->loss_hash, err, errlen) ||
           parse_hash(json, "corpus", &s->corpus, err, errlen);
}

static int restore_options(Config* config, const Json* json, char* err, size_t errlen) {
    const JsonValue* options = json_get(json, json->values, "options");
    if (!options || options->type != JSON_ARRAY)
        return fail(err, errlen, "state.json: expected an array \"options\", found none");
    for (int i = 0; i < options->n; i++) {
        const JsonValue* pair = json_at(json, options, i);
        const JsonValue *name = json_at(json, pair, 0), *value = json_at(json, pair, 1);
        char* strings = name && value ? config_string(config, name->length + value->length + 2) : NULL;
        if (name && value && !strings) return fail(err, errlen, "state.json: no memory for option %d", i);
        if (!strings || json_string(name, strings) < 0 || json_bytes(value, strings + name->length + 1) < 0)
            return fail(err, errlen, "state.json: option %d is not a pair of strings", i);
        if (config_restore(config, strings, strings + name->length + 1, err, errlen)) return -1;
    }
    return 0;
}

int run_state_parse(RunState* state, Config* config, const char* text, size_t n, char* err, size_t errlen) {
    Json json;
    memset(state, 0, sizeof *state);
    if (json_parse(&json, text, n, err, errlen)) return -1;
    int failed = parse_progress(state, &json, err, errlen) || parse_corpora(state, &json, err, errlen) ||
                 parse_balance(state, &json, err, errlen) || parse_division(state, &json, err, errlen) ||
                 restore_options(config, &json, err, errlen);
    json_free(&json);
    return failed ? -1 : 0;
}

static void put_line(void* context, const char* name, const char* value) {
    fprintf((FILE*)context, "%s %s%c", name, value, 0);
}

// The options behind each other; the caller frees. NULL without memory.
static char* list_options(const Config* config, size_t* n) {
    char* list = NULL;
    FILE* out = open_memstream(&list, n);
    if (!out) return NULL;
    config_visit(config, put_line, out);
    int failed = ferror(out);
    if (!fclose(out) && !failed) return list;
    free(list);
    return NULL;
}

static int compare_options(const Config* config, const Config* found, char* err, size_t errlen) {
    size_t n[2] = {0, 0}, at = 0;
    char *list[2] = {list_options(config, &n[0]), list_options(found, &n[1])};
    int failed = 0;
    while (list[0] && list[1] && at < n[0] && at < n[1] && !strcmp(list[0] + at, list[1] + at))
        at += strlen(list[0] + at) + 1;
    if (!list[0] || !list[1]) failed = fail(err, errlen, "no memory to compare options");
    else if (at < n[0] || at < n[1])
        failed = fail(err, errlen, "state.json would not keep %.200s", at < n[0] ? list[0] + at : list[1] + at);
    free(list[0]);
    free(list[1]);
    return failed;
}

int run_state_check(const RunState* state, const Config* config, char* err, size_t errlen) {
    Config found;
    RunState again;
    char *name[] = {"", NULL}, *text = run_state_text(state, config), *other = NULL;
    if (!text) return fail(err, errlen, "no memory for state.json");
    int failed = config_parse(&found, 1, name, err, errlen);
    if (!failed) failed = run_state_parse(&again, &found, text, strlen(text), err, errlen);
    if (!failed && !(other = run_state_text(&again, &found))) failed = fail(err, errlen, "no memory for state.json");
    if (!failed && strcmp(text, other)) failed = fail(err, errlen, "state.json would not keep all numbers of this run");
    if (!failed) failed = compare_options(config, &found, err, errlen);
    config_free(&found);
    free(text);
    free(other);
    return failed;
}

double run_state_loss(const char* text, size_t n) {
    Json json;
    double loss;
    if (json_parse(&json, text, n, NULL, 0)) return NAN;
    if (json_double(json_get(&json, json.values, "loss"), &loss)) loss = NAN;
    json_free(&json);
    return loss;
}
