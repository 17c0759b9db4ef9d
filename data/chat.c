// chat.c - see chat.h.
#define _GNU_SOURCE  // memmem
#include "data/chat.h"

#include <stdlib.h>
#include <string.h>

#include "data/json.h"
#include "data/tokenizer_files.h"
#include "plan/base/disk.h"

enum { CHAT_MOST = 1 << 24 };  // bytes of a file that holds a template

// ---- which template it is

typedef struct Known {
    uint64_t hash;
    ChatForm form;
} Known;

// Hashes of the templates of Hugging Face's hub, and of our own (chat_text). dev/golden_chats.py prints them.
static const Known known[] = {
    {0x123b051c785b3e64, CHAT_CHATML},   // SmolLM2, Qwen2
    {0xbc8c2079179a8862, CHAT_CHATML},   // ChatML, as people write it
    {0x99c0e559b1ef25e4, CHAT_QWEN},     // Qwen2.5
    {0x5580eb810c90bfc5, CHAT_QWEN3},    // Qwen3
    {0xb4b2da1686c93e3a, CHAT_QWEN},     // Qwen3-Instruct-2507
    {0x1a18a16c6abb9eee, CHAT_LLAMA3},   // Llama 3
    {0xb36e83a454179fff, CHAT_LLAMA31},  // Llama 3.1
    {0x77fc1e787fd7b737, CHAT_LLAMA31},  // Llama 3.2
};

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Finds the system message that a template adds, between the words that begin and end one. Returns its length.
static size_t find_system(const char* text, size_t n, const char** found) {
    static const char begin[] = "<|im_start|>system", end[] = "<|im_end|>";
    const char *stop = text + n, *at = text;
    while ((at = memmem(at, (size_t)(stop - at), begin, sizeof begin - 1))) {
        at += sizeof begin - 1;
        at += at + 1 < stop && at[0] == '\\' && at[1] == 'n' ? 2 : at < stop && *at == '\n';
        const char* last = memmem(at, (size_t)(stop - at), end, sizeof end - 1);
        size_t length = last ? (size_t)(last - at) : 0;
        int is_literal = length > 0 && length < CHAT_SYSTEM;
        for (size_t i = 0; i < length && is_literal; i++) is_literal = !strchr("'\"\\{}\n", at[i]);
        if (is_literal) return *found = at, length;
    }
    return 0;
}

uint64_t chat_hash(const char* text, size_t n) {
    const char* system = NULL;
    size_t length = find_system(text, n, &system), used = 0;
    char* kept = malloc(n + 1);
    for (size_t i = 0; kept && i < n; i++) {
        int is_break = i + 1 < n && text[i] == '\\' && text[i + 1] == 'n';
        if (length && n - i >= length && !memcmp(text + i, system, length)) i += length - 1;
        else if (is_break) i++;
        else if (!is_blank(text[i])) kept[used++] = text[i];
    }
    uint64_t hash = kept ? hash_bytes(kept, used, 0) : 0;
    free(kept);
    return hash;
}

static ChatForm form_of_vocabulary(const Tokenizer* t) {
    if (tokenizer_named(t, "<|im_start|>") >= 0 && tokenizer_named(t, "<|im_end|>") >= 0) return CHAT_CHATML;
    int has_headers = tokenizer_named(t, "<|start_header_id|>") >= 0 && tokenizer_named(t, "<|end_header_id|>") >= 0;
    return has_headers && tokenizer_named(t, "<|eot_id|>") >= 0 ? CHAT_LLAMA3 : CHAT_PLAIN;
}

ChatForm chat_form(uint64_t hash) {
    for (int i = 0; i < COUNT(known); i++)
        if (known[i].hash == hash) return known[i].form;
    for (ChatForm form = CHAT_PLAIN; form < N_CHAT_FORMS; form++) {
        const char* own = chat_text(form);
        if (own && chat_hash(own, strlen(own)) == hash) return form;
    }
    return N_CHAT_FORMS;
}

int chat_open(ChatTemplate* out, ChatForm form, const Tokenizer* t, const char* system, size_t n, Err err) {
    int is_llama = form == CHAT_LLAMA3 || form == CHAT_LLAMA31;
    *out = (ChatTemplate){form, t->end_of_text, -1, -1, -1, ": ", "\n\n", n > 0 || form == CHAT_LLAMA31, ""};
    snprintf(out->system, CHAT_SYSTEM, "%.*s", (int)n, n ? system : "");
    if (form == CHAT_PLAIN) return 0;
    out->begin = tokenizer_named(t, is_llama ? "<|start_header_id|>" : "<|im_start|>");
    out->end = tokenizer_named(t, is_llama ? "<|eot_id|>" : "<|im_end|>");
    out->header_end = is_llama ? tokenizer_named(t, "<|end_header_id|>") : -1;
    out->after_role = is_llama ? "\n\n" : "\n", out->after_content = is_llama ? "" : "\n";
    if (!is_llama) out->before = -1;
    if (out->begin >= 0 && out->end >= 0 && (!is_llama || out->header_end >= 0)) return 0;
    return fail(err, "a chat template whose tokens the vocabulary lacks");
}

int chat_find(ChatTemplate* out, const Tokenizer* t, const char* text, size_t n, Err err) {
    const char* system = NULL;
    size_t length = text ? find_system(text, n, &system) : 0;
    ChatForm form = text ? chat_form(chat_hash(text, n)) : form_of_vocabulary(t);
    if (form < N_CHAT_FORMS) return chat_open(out, form, t, system, length, err);
    return fail(err, "a chat template that is none of SmolLM2's, Qwen2's to Qwen3's, Llama 3's, or plain ChatML");
}

// ---- where it is kept

// The template of tokenizer_config.json: a string, or the "default" one of several.
static const JsonValue* template_of(const Json* json) {
    const JsonValue* value = json_get(json->values, "chat_template");
    if (!value || value->type != JSON_ARRAY) return value;
    for (const JsonValue* entry = json_elements(value); entry; entry = json_next(entry))
        if (json_is(json_get(entry, "name"), "default")) return json_get(entry, "template");
    return NULL;
}

static int read_config(char** text, size_t* n, const char* path, Err err) {
    char why[ERR_BYTES];
    size_t bytes = 0;
    Json json;
    char* config = disk_read_file(path, CHAT_MOST, &bytes, err);
    if (!config) return -1;
    int status = json_parse(&json, config, bytes, why) ? fail(err, "%s: %s", path, why) : 0;
    const JsonValue* value = status ? NULL : template_of(&json);
    if (value && value->type != JSON_NULL) {
        int64_t length = (*text = malloc(value->length + 1)) ? json_string(value, *text) : -1;
        if (length < 0) status = fail(err, "%s: expected \"chat_template\" as a string", path);
        else *n = (size_t)length;
    }
    if (status) free(*text), *text = NULL;
    json_free(&json);
    free(config);
    return status;
}

int chat_read(char** text, size_t* n, const char* dir, Err err) {
    static const char own[] = "chat_template.jinja", config[] = "tokenizer_config.json";
    char path[DISK_PATH];
    *text = NULL, *n = 0;
    if (disk_join(path, dir, disk_is_file(dir, own) ? own : config, err)) return -1;
    if (disk_is_file(dir, own)) return (*text = disk_read_file(path, CHAT_MOST, n, err)) ? 0 : -1;
    return disk_is_file(dir, config) ? read_config(text, n, path, err) : 0;
}

const char* chat_text(ChatForm form) {
    static const char* const texts[N_CHAT_FORMS] = {
        [CHAT_PLAIN] =
            "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}"
            "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n\\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
        [CHAT_CHATML] =
            "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
            "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        [CHAT_LLAMA3] =
            "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
            "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    };
    return texts[form];
}

// ---- text and tokens

static int put_text(ChatWriter* w, const char* text, size_t n) {
    if (reserve(&w->text, &w->text_capacity, w->n_text, (int64_t)n, 1, w->err)) return -1;
    memcpy(w->text + w->n_text, text, n);
    w->n_text += (int64_t)n;
    return 0;
}

static int put_words(ChatWriter* w, const char* words) { return put_text(w, words, strlen(words)); }

// Encodes text without marks.
static int encode(ChatWriter* w, const char* text, size_t n) {
    const Tokenizer* t = w->tokenizer;
    if (reserve(&w->tokens, &w->capacity, w->n, (int64_t)n * t->most + 1, sizeof *w->tokens, w->err)) return -1;
    w->n += (int64_t)t->encode(t, w->tokens + w->n, text, n);
    return 0;
}

int chat_flush(ChatWriter* w) {
    const char *at = w->text, *end = at + w->n_text;
    while (at < end) {
        size_t before, length;
        int mark = tokenizer_next_mark(w->tokenizer, at, (size_t)(end - at), &before, &length);
        if (encode(w, at, before)) return -1;
        if (mark >= 0) w->tokens[w->n++] = mark;
        at += before + length;
    }
    w->n_text = 0;
    return 0;
}

static int put_token(ChatWriter* w, int token) {
    if (token < 0) return 0;
    if (chat_flush(w) || reserve(&w->tokens, &w->capacity, w->n, 1, sizeof *w->tokens, w->err)) return -1;
    w->tokens[w->n++] = token;
    return 0;
}

void chat_free(ChatWriter* w) {
    free(w->tokens), free(w->text);
    *w = (ChatWriter){0};
}

// ---- spans of bytes, as Python's str has them

typedef struct Span {
    const char* at;
    size_t n;
} Span;

static Span without(Span s, int blanks, int before, int after) {
    while (before && s.n && (blanks ? is_blank(*s.at) : *s.at == '\n')) s.at++, s.n--;
    while (after && s.n && (blanks ? is_blank(s.at[s.n - 1]) : s.at[s.n - 1] == '\n')) s.n--;
    return s;
}

// Cuts at the first or the last place of `mark`. Returns 1 if there is one.
static int cut(Span s, const char* mark, int last, Span* before, Span* after) {
    const char *end = s.at + s.n, *found = NULL, *at = s.at;
    while ((!found || last) && (at = memmem(at, (size_t)(end - at), mark, strlen(mark))))
        found = at, at += strlen(mark);
    *before = found ? (Span){s.at, (size_t)(found - s.at)} : s;
    *after = found ? (Span){found + strlen(mark), (size_t)(end - found) - strlen(mark)} : s;
    return found != NULL;
}

// ---- messages

static int is_role(const ChatMessage* m, const char* role) { return !strcmp(m->role, role); }

// A tool's answer, in a template that puts it into a user's turn.
static int is_tools(const ChatWriter* w, int i) {
    int is_qwen = w->chat->form == CHAT_QWEN || w->chat->form == CHAT_QWEN3;
    return is_qwen && i >= 0 && i < w->n_list && is_role(&w->list[i], "tool");
}

static int is_call(const ChatWriter* w, const ChatMessage* m) {
    return w->chat->form == CHAT_LLAMA31 && (is_role(m, "tool") || is_role(m, "ipython"));
}

// Returns 1 if message i of a chat of n follows the last question of a user: answers of tools are no questions.
static int answers_last_question(const ChatWriter* w, int i, int n) {
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    int last = n - 1;
    for (int k = n - 1; k >= 0; k--) {
        const ChatMessage* m = &w->list[k];
        int is_answer = m->n >= sizeof end && !memcmp(m->content, begin, sizeof begin - 1) &&
                        !memcmp(m->content + m->n - (sizeof end - 1), end, sizeof end - 1);
        if (!is_role(m, "user") || is_answer) continue;
        last = k;
        break;
    }
    return i > last;
}

// Qwen3's: a thought stands before the answers to the last question alone.
static int put_thoughtful(ChatWriter* w, int i, int n, const ChatMessage* m) {
    Span content = {m->content, m->n}, thought = {m->thought, m->n_thought}, rest;
    if (!m->thought && cut(content, "</think>", 0, &thought, &rest)) {
        cut(content, "</think>", 1, &rest, &content);
        cut(without(thought, 0, 0, 1), "<think>", 1, &rest, &thought);
        thought = without(thought, 0, 1, 0), content = without(content, 0, 1, 0);
    } else if (!m->thought) thought.n = 0;
    if (!answers_last_question(w, i, n) || (i < n - 1 && thought.n == 0)) return put_text(w, content.at, content.n);
    thought = without(thought, 0, 1, 1), content = without(content, 0, 1, 0);
    if (put_words(w, "<think>\n") || put_text(w, thought.at, thought.n) || put_words(w, "\n</think>\n\n")) return -1;
    return put_text(w, content.at, content.n);
}

static int put_quoted(ChatWriter* w, const ChatMessage* m) {
    if (reserve(&w->text, &w->text_capacity, w->n_text, (int64_t)(6 * m->n + 3), 1, w->err)) return -1;
    w->n_text += (int64_t)json_quote(w->text + w->n_text, m->content, m->n);
    return 0;
}

// Puts message m in the place of message i, in a chat that has n then.
static int put_body(ChatWriter* w, int i, int n, const ChatMessage* m) {
    Span content = {m->content, m->n};
    if (is_tools(w, i))
        return put_words(w, "\n<tool_response>\n") || put_text(w, m->content, m->n) ||
               put_words(w, "\n</tool_response>");
    if (is_call(w, m)) return put_quoted(w, m);
    if (w->chat->form == CHAT_QWEN3 && chat_learns(m)) return put_thoughtful(w, i, n, m);
    if (w->chat->form >= CHAT_LLAMA3) content = without(content, 1, 1, 1);
    if (w->chat->form == CHAT_LLAMA31 && i == 0 && is_role(m, "system"))
        if (put_words(w, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n")) return -1;
    return put_text(w, content.at, content.n);
}

static int put_header(ChatWriter* w, const char* role, const char* after_role) {
    if (put_token(w, w->chat->begin) || put_words(w, role) || put_token(w, w->chat->header_end)) return -1;
    return put_words(w, after_role);
}

int chat_header(ChatWriter* w, int i) {
    const ChatMessage* m = &w->list[i];
    int is_qwen = w->chat->form == CHAT_QWEN || w->chat->form == CHAT_QWEN3;
    int is_known = is_role(m, "system") || is_role(m, "user") || chat_learns(m) || is_role(m, "tool");
    if (is_qwen && !is_known)
        return fail(w->err,
                    "expected the role system, user, assistant or tool, as the model's template does, found %.40s",
                    m->role);
    if (is_tools(w, i)) return is_tools(w, i - 1) ? 0 : put_header(w, "user", "");
    return put_header(w, is_call(w, m) ? "ipython" : m->role, w->chat->after_role);
}

int chat_content(ChatWriter* w, int i, const ChatMessage* as) {
    const ChatMessage* m = as ? as : &w->list[i];
    int learns = chat_learns(m), ends = learns && w->chat->form == CHAT_PLAIN;
    if ((learns && chat_flush(w)) || put_body(w, i, as ? i + 1 : w->n_list, m)) return -1;
    if (is_tools(w, i) && is_tools(w, i + 1)) return 0;
    if (put_token(w, ends ? w->tokenizer->stop : w->chat->end)) return -1;
    return learns ? chat_flush(w) : 0;
}

int chat_after(ChatWriter* w, int i) {
    int ends = chat_learns(&w->list[i]) && w->chat->form == CHAT_PLAIN;
    return ends || (is_tools(w, i) && is_tools(w, i + 1)) ? 0 : put_words(w, w->chat->after_content);
}

int chat_begin(ChatWriter* w, const ChatMessage* list, int n) {
    w->list = list, w->n_list = n;
    if (put_token(w, w->chat->before)) return -1;
    if (!w->chat->adds_system || (n > 0 && is_role(&list[0], "system"))) return 0;
    const ChatMessage added = {.role = "system", .content = w->chat->system, .n = strlen(w->chat->system)};
    return put_header(w, added.role, w->chat->after_role) || put_body(w, 0, n, &added) || put_token(w, w->chat->end) ||
           put_words(w, w->chat->after_content);
}

int chat_render(ChatWriter* w, const ChatMessage* list, int n) {
    int failed = chat_begin(w, list, n);
    for (int i = 0; i < n && !failed; i++) failed = chat_header(w, i) || chat_content(w, i, NULL) || chat_after(w, i);
    return failed || put_header(w, "assistant", w->chat->after_role) || chat_flush(w) ? -1 : 0;
}
