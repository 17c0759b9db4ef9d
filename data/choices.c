// choices.c - see choices.h.
#include "data/choices.h"

#include <stdlib.h>
#include <string.h>

#include "data/json.h"
#include "plan/base/base.h"

void choice_free(Choice* c) {
    for (int i = 0; i < c->n && c->endings; i++) free(c->endings[i]);
    free(c->endings);
    free(c->context);
    *c = (Choice){0};
}

// NULL with a message.
static char* string_of(const JsonValue* value, const char* what, Err err) {
    char* text = value && value->type == JSON_STRING ? (char*)malloc(value->length + 1) : NULL;
    int64_t n = text ? json_string(value, text) : -1;
    if (n >= 0 && strlen(text) == (size_t)n) return text;
    free(text);
    fail(err, "expected %s as a string without NUL", what);
    return NULL;
}

// The label may stand in quotes.
static int read_label(const Json* json, int n, int* label, Err err) {
    const JsonValue* value = json_get(json, json->values, "label");
    int64_t x = -1;
    if (value && value->type == JSON_STRING && value->length == 1 && value->text[0] >= '0' && value->text[0] <= '9')
        x = value->text[0] - '0';
    else if (json_int64(value, &x)) x = -1;
    if (x < 0 || x >= n) return fail(err, "expected a \"label\" from 0 to %d", n - 1);
    *label = (int)x;
    return 0;
}

static int read_choice(Choice* c, const Json* json, Err err) {
    const JsonValue *root = json->values, *context = json_get(json, root, "ctx");
    const JsonValue* endings = json_get(json, root, "endings");
    if (!context) context = json_get(json, root, "context");
    if (!endings || endings->type != JSON_ARRAY || endings->n < 2)
        return fail(err, "expected an array \"endings\" of at least two strings");
    c->context = string_of(context, "\"ctx\"", err);
    c->endings = (char**)calloc((size_t)endings->n, sizeof *c->endings);
    if (!c->context) return -1;
    if (!c->endings) return fail(err, "no memory for %d endings", endings->n);
    c->n = endings->n;
    for (int i = 0; i < c->n; i++)
        if (!(c->endings[i] = string_of(json_at(json, endings, i), "an ending", err))) return -1;
    return read_label(json, c->n, &c->label, err);
}

int choice_parse(Choice* choice, const char* line, size_t n, Err err) {
    Json json;
    memset(choice, 0, sizeof *choice);
    if (json_parse(&json, line, n, err)) return -1;
    int failed = json.values->type == JSON_OBJECT ? read_choice(choice, &json, err) : fail(err, "expected an object");
    json_free(&json);
    if (failed) choice_free(choice);
    return failed;
}
