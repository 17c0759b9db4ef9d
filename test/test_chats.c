// test_chats.c - chats become the tokens that the templates of known models make of them, id for id (transformers made
// test/golden/chats.jsonl, by dev/golden_chats.py), and only what an assistant says is learnt.
#include "data/chat.h"
#include "data/json.h"
#include "data/tokenizer_files.h"
#include "plan/base/disk.h"
#include "test/test.h"

enum { MOST_MESSAGES = 8, MOST_TOKENS = 2048 };

static char err[ERR_BYTES];

// The strings of a line, behind each other.
static char strings[1 << 14];
static size_t n_strings;

static const char* string_of(const JsonValue* object, const char* name, size_t* n) {
    char* text = strings + n_strings;
    int64_t length = json_string(json_get(object, name), text);
    CHECK(length >= 0);
    n_strings += (size_t)length + 1, *n = (size_t)length;
    return text;
}

static int read_messages(ChatMessage* list, const Json* json) {
    const JsonValue* messages = json_get(json->values, "messages");
    size_t n;
    for (int i = 0; i < messages->n; i++) {
        const JsonValue* m = json_at(messages, i);
        list[i] = (ChatMessage){.role = string_of(m, "role", &n)};
        list[i].content = string_of(m, "content", &list[i].n);
    }
    return messages->n;
}

static int put_messages(ChatWriter* w, const ChatMessage* list, int n) {
    int failed = chat_begin(w, list, n);
    for (int i = 0; i < n && !failed; i++) failed = chat_header(w, i) || chat_content(w, i, NULL) || chat_after(w, i);
    return failed;
}

static void check_ids(const Json* json, const char* name, const ChatWriter* w) {
    const JsonValue* ids = json_get(json->values, name);
    int64_t id = -1;
    int i = 0;
    while (i < w->n && i < ids->n && json_int64(json_at(ids, i), &id) == 0 && w->tokens[i] == id) i++;
    CHECK(w->n == ids->n && i == ids->n);
    if (i < ids->n || w->n != ids->n)
        printf("    %s: token %d of %d and %d: expected %d\n", name, i, (int)w->n, ids->n, (int)id);
}

static void check_line(const Json* json, Tokenizer* t) {
    static const char* const forms[] = {"PLAIN", "CHATML", "QWEN", "QWEN3", "LLAMA3", "LLAMA31"};
    ChatMessage list[MOST_MESSAGES];
    ChatTemplate chat;
    size_t n = 0;
    n_strings = 0;
    uint64_t hash = strtoull(string_of(json->values, "hash", &n), NULL, 16);
    ChatForm form = chat_form(hash);
    CHECK(form < N_CHAT_FORMS && json_is(json_get(json->values, "form"), forms[form % N_CHAT_FORMS]));
    const char* system = string_of(json->values, "system", &n);
    CHECK(chat_open(&chat, form, t, system, n, err) == 0);
    int messages = read_messages(list, json);
    ChatWriter w = {.chat = &chat, .tokenizer = t, .err = err};
    CHECK(put_messages(&w, list, messages) == 0 && chat_flush(&w) == 0);
    check_ids(json, "ids", &w);
    w.n = 0;
    CHECK(chat_render(&w, list, messages - 1) == 0);
    check_ids(json, "prompt", &w);
    chat_free(&w);
}

static char* golden;  // chats.jsonl

// Calls `check` with every line that has chats of this vocabulary.
static void check_vocabulary(const char* name) {
    char path[128];
    Tokenizer* t = NULL;
    int lines = 0;
    snprintf(path, sizeof path, "test/golden/tokenizers/%s.json", name);
    CHECK(tokenizer_open(&t, path, err) == 0);
    for (char *line = golden, *end; t && *line; line = end + 1) {
        Json json;
        end = strchr(line, '\n');
        CHECK(json_parse(&json, line, (size_t)(end - line), err) == 0);
        if (json_is(json_get(json.values, "vocabulary"), name)) check_line(&json, t), lines++;
        json_free(&json);
    }
    CHECK(lines >= 20);
    tokenizer_close(t);
}

CLAIM(chats_of_smollm2_are_those_of_its_template) { check_vocabulary("smollm2"); }
CLAIM(chats_of_qwen_are_those_of_its_templates) { check_vocabulary("qwen3"); }
CLAIM(chats_of_llama_are_those_of_its_templates) { check_vocabulary("llama3"); }

int main(void) {
    size_t n;
    golden = disk_read_file("test/golden/chats.jsonl", 1 << 20, &n, err);
    if (!golden) printf("%s\n", err), exit(1);
    run_claims();
    free(golden);
    return test_done();
}
