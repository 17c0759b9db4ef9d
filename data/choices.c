// choices.c - see choices.h.
#include "data/choices.h"

#include <stdlib.h>

#include "data/json.h"

void choice_free(Choice* c) {
    free(c->text);
    free(c->endings);
    *c = (Choice){0};
}

// Reads a string to *at, which moves past it, and returns it; NULL with a message.
static char* take_string(const JsonValue* value, char** at, const char* what, Err err) {
    char* text = *at;
    int64_t replaced = 0, n = json_prose(value, text, &replaced);
    if (n < 0 || strlen(text) != (size_t)n) {
        fail(err, "expected %s as a string without NUL", what);
        return NULL;
    }
    *at += n + 1;
    return text;
}

// Reads the label, which may stand in quotes.
static int read_label(const JsonValue* root, int n, int* label, Err err) {
    const JsonValue* value = json_get(root, "label");
    int64_t x = -1;
    if (value && value->type == JSON_STRING && value->length == 1 && value->text[0] >= '0' && value->text[0] <= '9')
        x = value->text[0] - '0';
    else if (json_int64(value, &x)) x = -1;
    if (x < 0 || x >= n) return fail(err, "expected a \"label\" from 0 to %d", n - 1);
    *label = (int)x;
    return 0;
}

// Reads all of a choice. Strings take no more room than in the line, whose quotes make room for their ends.
static int read_choice(Choice* c, const JsonValue* root, size_t n, Err err) {
    const JsonValue *context = json_get(root, "ctx"), *endings = json_get(root, "endings");
    if (root->type != JSON_OBJECT) return fail(err, "expected an object");
    if (!context) context = json_get(root, "context");
    if (!endings || endings->type != JSON_ARRAY || endings->n < 2)
        return fail(err, "expected an array \"endings\" of at least two strings");
    char* at = c->text = malloc(n);
    c->endings = malloc((size_t)endings->n * sizeof *c->endings);
    if (!c->text || !c->endings) return fail(err, "no memory for %d endings", endings->n);
    if (!(c->context = take_string(context, &at, "\"ctx\"", err))) return -1;
    for (const JsonValue* ending = json_elements(endings); ending; ending = json_next(ending))
        if (!(c->endings[c->n++] = take_string(ending, &at, "an ending", err))) return -1;
    return read_label(root, c->n, &c->label, err);
}

int choice_parse(Choice* choice, const char* line, size_t n, Err err) {
    Json json;
    *choice = (Choice){0};
    if (json_parse(&json, line, n, err)) return -1;
    int failed = read_choice(choice, json.values, n, err);
    json_free(&json);
    if (failed) choice_free(choice);
    return failed;
}
