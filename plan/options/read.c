// read.c - options that go together, and the nearest to a word that is none; see read.h.
#include "plan/options/read.h"
#include "plan/options/table.h"

// Levenshtein distance, two rows of its table at a time.
static int edit_distance(const char* a, const char* b) {
    int row[2][64], n = (int)MIN(strlen(b), (size_t)63), i = 0;
    for (int j = 0; j <= n; j++) row[0][j] = j;
    for (; a[i]; i++) {
        int *last = row[i & 1], *next = row[(i + 1) & 1];
        next[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = last[j] + (a[i] != b[j]), cheaper = MIN(last[j + 1], next[j]) + 1;
            next[j + 1] = MIN(change, cheaper);
        }
    }
    return row[i & 1][n];
}

// NULL: none is near.
static const char* nearest_option(const char* name) {
    const char* meant = NULL;
    int least = (int)strlen(name) / 3 + 1;
    for (const Option* o = config_options; *o->value.name; o++) {
        int distance = is_option_name(o->value.name) ? edit_distance(name, o->value.name) : least;
        if (distance < least) least = distance, meant = o->value.name;
    }
    return meant;
}

// What several options are that may stand alone or before a word.
static int settle_words(Config* c, Err err) {
    char topics[128] = "all";
    size_t n = strlen(topics);
    for (const Option* o = config_options; *o->value.name; o++)
        if (o->value.type == GROUP) text_append(topics, sizeof topics, &n, "|%s", o->value.name);
    if (c->help && *c->help && word_choice((Word){c->help, strlen(c->help)}, topics) < 0)
        return fail(err, "--help stands alone or before %s, found \"%s\"", topics, c->help);
    if (c->explain_what && *c->explain_what && strcmp(c->explain_what, "layout") != 0)
        return fail(err, "--explain stands alone or before layout, found \"%s\"", c->explain_what);
    c->explain = c->explain_what && !*c->explain_what;
    c->check_layout = c->explain_what && *c->explain_what;
    c->eval = c->eval_choices && !*c->eval_choices;
    if (c->eval) c->eval_choices = NULL;
    c->resume = c->resume_from != NULL;
    if (c->resume && !*c->resume_from) c->resume_from = NULL;
    return 0;
}

int config_read(Config* c, int argc, char** argv, Err err) {
    char name[128];
    if (config_parse(c, argc, argv, err) == 0) return settle_words(c, err);
    if (!c->unknown) return -1;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(c->unknown, "="), c->unknown);
    const char* meant = nearest_option(name);
    return meant ? fail(err, "unknown option %s; did you mean %s?", name, meant) : -1;
}

int config_choice(const Config* c, const char* name) {
    const Option* o = option_find(name);
    const char* value = *(const char* const*)((const char*)c + o->value.at);
    return word_choice((Word){value, strlen(value)}, o->value.choices);
}

// ---- ranks

// Only the static planner is told a cp size; the others choose it.
static int settle_plan(Config* config, Err err) {
    if (config->cp_size == 0 || !strcmp(config->plan, "static")) return 0;
    if (config_was_given(config, "--plan"))
        return fail(err, "--plan %s chooses cp sizes by itself, found --cp %d; try --plan static or --cp 0",
                    config->plan, config->cp_size);
    config->plan = "static";
    return 0;
}

int config_complete(Config* config, int tokenizer_vocab, Err err) {
    if (settle_plan(config, err) || config_settle(config, tokenizer_vocab, err)) return -1;
    if (config->capacity && config->capacity < config->context && !config->several_ranks)
        return fail(
            err,
            "--capacity %d cannot hold one document of up to --context %d tokens on one rank; try --capacity %d, a "
            "smaller --context, or %d ranks that share it: mpirun -n %d",
            config->capacity, config->context, config->context, CEIL_DIV(config->context, config->capacity),
            CEIL_DIV(config->context, config->capacity));
    return 0;
}
