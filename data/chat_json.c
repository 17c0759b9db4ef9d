// chat_json.c - messages of JSON, in the forms in which people have them; see chat.h.
#include <stdlib.h>

#include "data/chat.h"

// Strings lie in scratch, one after another; the first *used bytes are taken.
typedef struct Strings {
    char* scratch;
    size_t* used;
    char* err;
} Strings;

static int read_string(const Strings* s, ChatMessage* m, const JsonValue* value, const char* what, const char** text,
                       size_t* n) {
    int64_t bytes = json_prose(value, s->scratch + *s->used, &m->replaced);
    if (bytes < 0) return fail(s->err, "expected %s as a string", what);
    *text = s->scratch + *s->used, *n = (size_t)bytes;
    *s->used += (size_t)bytes + 1;
    return 0;
}

// Reads the content of a message that comes in parts, as one text.
static int read_parts(const Strings* s, ChatMessage* m, const JsonValue* parts) {
    m->content = s->scratch + *s->used;
    for (const JsonValue* part = json_elements(parts); part; part = json_next(part)) {
        const JsonValue* type = json_get(part, "type");
        if (type && !json_is(type, "text"))
            return fail(s->err, "a message has a part of type \"%.*s\", expected text alone; leave such lines out",
                        (int)MIN(type->length, 40), type->text);
        int64_t more = json_prose(json_get(part, "text"), s->scratch + *s->used, &m->replaced);
        if (more < 0) return fail(s->err, "expected a part of a message as {\"type\": \"text\", \"text\": \"...\"}");
        *s->used += (size_t)more, m->n += (size_t)more;
    }
    ++*s->used;
    return 0;
}

// check_calls refuses calls beside a content: templates of models write them in ways of their own.
static int check_calls(const JsonValue* message, Err err) {
    static const char* const names[] = {"tool_calls", "function_call"};
    for (int i = 0; i < COUNT(names); i++) {
        const JsonValue* calls = json_get(message, names[i]);
        if (calls && calls->type != JSON_NULL && (calls->n > 0 || calls->length > 2))
            return fail(err,
                        "a message has \"%s\", expected all that it says in \"content\"; write the calls there, as the "
                        "model's own template does",
                        names[i]);
    }
    return 0;
}

static const JsonValue* get_either(const JsonValue* object, const char* name, const char* other) {
    const JsonValue* value = json_get(object, name);
    return value ? value : json_get(object, other);
}

static int read_message(const Strings* s, ChatMessage* m, const JsonValue* value) {
    const JsonValue *role = get_either(value, "role", "from"), *content = get_either(value, "content", "value"),
                    *thought = json_get(value, "reasoning_content");
    size_t n;
    *m = (ChatMessage){0};
    if (read_string(s, m, role, "\"role\" or \"from\" of a message", &m->role, &n) || check_calls(value, s->err))
        return -1;
    if (json_is(role, "human")) m->role = "user";
    if (json_is(role, "gpt")) m->role = "assistant";
    if (thought && thought->type == JSON_STRING)
        if (read_string(s, m, thought, "\"reasoning_content\"", &m->thought, &m->n_thought)) return -1;
    if (content && content->type == JSON_ARRAY) return read_parts(s, m, content);
    return read_string(s, m, content, "\"content\" or \"value\" of a message", &m->content, &m->n);
}

int chat_read_list(ChatMessage** list, int* n, const JsonValue* messages, char* scratch, size_t* used, Err err) {
    const Strings strings = {scratch, used, err};
    int is_one = messages->type == JSON_OBJECT;
    if (messages->type != JSON_ARRAY && !is_one) return fail(err, "expected the messages as an array");
    ChatMessage* more = (ChatMessage*)realloc(*list, ((size_t)*n + (size_t)messages->n + 1) * sizeof *more);
    if (!more) return fail(err, "out of memory for %d messages", messages->n);
    *list = more;
    if (is_one) return read_message(&strings, &more[(*n)++], messages);
    for (const JsonValue* value = json_elements(messages); value; value = json_next(value))
        if (read_message(&strings, &more[(*n)++], value)) return -1;
    return 0;
}
