// prompts.c - see prompts.h.
#define _GNU_SOURCE
#include "run/rl/prompts.h"
#include "run/files/chats.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

void* rollouts_take(size_t n, size_t bytes) {
    void* p = calloc(MAX(n, (size_t)1), bytes);
    if (!p) die("--rollouts: no memory for %zu bytes", n * bytes);
    return p;
}

// ---- lines

const char* lines_next(Lines* x) {
    for (; x->path < x->paths->n; x->path++, x->number = 0) {
        const char* path = x->paths->paths[x->path];
        if (!x->file) x->file = fopen(path, "r");
        for (ssize_t n; x->file && (n = getline(&x->text, &x->room, x->file)) > 0;)
            if (x->number++, strspn(x->text, " \t\r\n") < (size_t)n) return x->text;
        if (!x->file || ferror(x->file)) die("--data: %s: cannot read: %s", path, strerror(errno));
        fclose(x->file);
        x->file = NULL;
    }
    return NULL;
}

void lines_close(Lines* x) {
    if (x->file) fclose(x->file);
    free(x->text);
}

void prompt_free(Prompt* p, int answers) {
    for (int i = 0; p->answers && i < answers; i++) free(p->answers[i].tokens);
    json_free(&p->json);
    free(p->answers), free(p->tokens), free(p->line), free(p);
}

// These make the tokens of a prompt; text: room for its strings.
static int encode_text(Prompt* p, const Run* run, const JsonValue* value, char* text, Err err) {
    const Tokenizer* t = run->data.tokenizer;
    int64_t replaced = 0, bytes = json_prose(value, text, &replaced);
    if (bytes < 0) return fail(err, "\"prompt\" is neither a string nor messages");
    p->tokens = sample_begin(run, (size_t)bytes * (size_t)t->most);
    p->n = 1 + (int)t->encode(t, p->tokens + 1, text, (size_t)bytes);
    return 0;
}

static int encode_messages(Prompt* p, const Run* run, const JsonValue* value, char* text, Err err) {
    ChatMessage* list = NULL;
    ChatWriter w = {.chat = run_chat(run, "--rollouts"), .tokenizer = run->data.tokenizer, .err = err};
    size_t used = 0;
    int n = 0, failed = chat_read_list(&list, &n, value, text, &used, err) || chat_render(&w, list, n);
    p->tokens = w.tokens, p->n = (int)w.n, w.tokens = NULL;
    chat_free(&w);
    free(list);
    return failed;
}

static int prompt_encode(Prompt* p, const Run* run, Err err) {
    int context = run->model.shape.context;
    char names[256];
    size_t n = strlen(p->line);
    if (json_parse(&p->json, p->line, n, err)) return -1;
    const JsonValue *root = p->json.values, *prompt = json_get(root, "prompt"), *messages = json_get(root, "messages");
    const JsonValue* value = prompt ? prompt : messages;
    if (!value) return fail(err, "no \"prompt\" or \"messages\" in it, but %s", json_names(root, names, sizeof names));
    char* text = (char*)rollouts_take(n + 1, 1);
    int failed =
        value->type == JSON_ARRAY ? encode_messages(p, run, value, text, err) : encode_text(p, run, value, text, err);
    free(text);
    if (failed) return -1;
    if (p->n == 1) return fail(err, "a prompt without tokens");
    p->most = MIN(run->config.tokens, context - p->n), p->place = -1;
    if (p->most > 0) return 0;
    return fail(err, "the prompt has %d tokens, and an answer no room in --context %d", p->n, context);
}

Prompt* prompt_read(const Run* run, const Lines* lines, int64_t number) {
    Err err;
    Prompt* p = (Prompt*)rollouts_take(1, sizeof *p);
    p->number = number, p->line = strdup(lines->text);
    if (!p->line) die("--rollouts: no memory for a line");
    if (prompt_encode(p, run, err))
        die("%s:%" PRId64 ": %s; --rollouts expects {\"prompt\": \"...\"} or {\"messages\": [...]}, a line each",
            lines->paths->paths[lines->path], lines->number, err);
    return p;
}

// ---- a finished prompt

static void put_text(FILE* out, const Tokenizer* t, const int* tokens, int n) {
    char* text = NULL;
    size_t bytes = 0;
    FILE* all = open_memstream(&text, &bytes);
    for (int i = 0; all && i < n; i++) {
        size_t length = 0;
        const char* piece = t->decode(t, tokens[i], &length);
        fwrite(piece, 1, length, all);
    }
    if (!all || fclose(all)) die("--rollouts: no memory for the text of an answer");
    json_put(out, text, bytes);
    free(text);
}

static void put_answer(FILE* out, const Drawn* x, const Tokenizer* tokenizer, Made* made) {
    fprintf(out, "{\"text\": ");
    put_text(out, tokenizer, x->tokens, x->n - x->ended);
    for (int t = 0; t < x->n; t++) fprintf(out, "%s%d", t ? ", " : ", \"tokens\": [", x->tokens[t]);
    for (int t = 0; t < x->n; t++) fprintf(out, "%s%.9g", t ? ", " : "], \"logprobs\": [", (double)x->logprobs[t]);
    fprintf(out, "], \"ended\": %s}", x->ended ? "true" : "false");
    made->answers++, made->tokens += x->n, made->ended += x->ended;
}

void prompt_put(FILE* out, const Prompt* p, const Tokenizer* tokenizer, Made* made) {
    fprintf(out, "%" PRId64 " {", p->number);
    for (const JsonValue* name = json_members(p->json.values); name; name = json_next(name)) {
        const JsonValue* value = name + 1;
        int quotes = value->type == JSON_STRING;  // the text of a string lacks its quotes
        if (json_is(name, "answers")) continue;
        fprintf(out, "\"%.*s\": ", (int)name->length, name->text);
        fwrite(value->text - quotes, 1, value->length + 2 * (size_t)quotes, out);
        fputs(", ", out);
    }
    fputs("\"answers\": [", out);
    for (int i = 0, n = 0; i < p->started; i++) {
        const Drawn* x = &p->answers[i];
        if (!x->ended && x->n < p->most) continue;
        if (n++) fputs(", ", out);
        put_answer(out, x, tokenizer, made);
    }
    fputs("]}\n", out);
    made->prompts++;
}
