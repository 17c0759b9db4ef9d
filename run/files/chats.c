// chats.c - see chats.h.
#define _GNU_SOURCE  // open_memstream
#include "run/files/chats.h"

#include <stdlib.h>

#include "data/docs_files.h"
#include "data/tokenizer_files.h"

enum { MOST_CONFIG = 1 << 22 };  // bytes of such a file

// Fills dir with the directory of the tokenizer that was named, or of the checkpoint. Returns 0 if there is neither.
static int directory(const Run* run, char dir[CHECKPOINT_PATH]) {
    int is_given = config_was_given(&run->config, "--tokenizer") || !run->books->start_from[0];
    const char* named = is_given ? run->config.tokenizer : NULL;
    snprintf(dir, CHECKPOINT_PATH, "%s", named ? named : run->books->start_from);
    if (!named && run->books->base[0] && !disk_is_file(dir, "tokenizer_config.json"))
        snprintf(dir, CHECKPOINT_PATH, "%s", run->books->base);  // an adapter alone
    if (!named || disk_is_dir(named)) return dir[0] != 0;
    char* slash = strrchr(dir, '/');
    snprintf(slash ? slash : dir, 2, slash ? "" : ".");
    return 1;
}

// Returns 1 if tokenizer_config.json names this token as the end of a text.
static int ends_with(const char* dir, const Tokenizer* t, int token) {
    char path[DISK_PATH], err[ERR_BYTES];
    const char* name;
    size_t n = 0, length;
    Json json;
    if (!disk_is_file(dir, "tokenizer_config.json") || disk_join(path, dir, "tokenizer_config.json", err)) return 0;
    char* text = disk_read_file(path, MOST_CONFIG, &n, err);
    if (!text || json_parse(&json, text, n, err)) return free(text), 0;
    const JsonValue *value = json_get(json.values, "eos_token"), *content = json_get(value, "content");
    name = t->decode(t, token, &length);
    if (content) value = content;
    int is_it = value && value->type == JSON_STRING && value->length == length && !memcmp(value->text, name, length);
    json_free(&json);
    free(text);
    return is_it;
}

void run_open_chat(Run* run) {
    char dir[CHECKPOINT_PATH], path[DISK_PATH], err[ERR_BYTES];
    ModelChat* x = (ModelChat*)calloc(1, sizeof *x);
    const Tokenizer* t = run->data.tokenizer;
    if (!x) die("no memory for a chat template");
    int has_files = directory(run, dir);
    if (has_files && chat_read(&x->text, &x->n, dir, err)) die("%s", err);
    if (chat_find(&x->chat, t, x->text, x->n, err))
        snprintf(x->why, sizeof x->why,
                 "%.3900s has %s; scripts/recipes/chats.py renders messages by it, as prompts and completions", dir,
                 err);
    x->ends_turns = has_files && x->chat.end >= 0 && !x->why[0] && ends_with(dir, t, x->chat.end);
    if (has_files && disk_is_file(dir, "generation_config.json") &&
        !disk_join(path, dir, "generation_config.json", err))
        x->generation = disk_read_file(path, MOST_CONFIG, &x->n_generation, err);
    run->data.chat = x;
}

const ChatTemplate* run_chat(const Run* run, const char* option) {
    const ModelChat* x = run->data.chat;
    if (x->why[0]) die("%s: %s", option, x->why);
    return &x->chat;
}

int run_learns_chats(const Run* run) {
    const Docs* docs = run->data.docs;
    return docs && docs->more && docs->more->chats > 0;
}

int run_ends_turns(const Run* run) {
    const ModelChat* x = run->data.chat;
    return x && !x->why[0] && x->chat.end >= 0 && (x->ends_turns || run_learns_chats(run));
}

// ---- into checkpoints

char* run_tokenizer_config(const Run* run, size_t* n) {
    const ModelChat* x = run->data.chat;
    const char* own = run_learns_chats(run) && !x->why[0] ? chat_text(x->chat.form) : NULL;
    TokenizerConfig c = {run->model.whole.positions, run->data.stop, x->text, x->n};
    if (!c.chat && own) c.chat = own, c.n_chat = strlen(own);
    return tokenizer_config_text(run->data.tokenizer, &c, n);
}

// The members of the file that the model came with, but for the tokens that end a text; then these: a turn's, and the
// text's.
char* run_generation_config(const Run* run, size_t* n) {
    const ModelChat* x = run->data.chat;
    char *text = NULL, err[ERR_BYTES];
    Json json = {0};
    if (!x->generation && !run_ends_turns(run)) return NULL;
    FILE* out = open_memstream(&text, n);
    if (!out) return NULL;
    fprintf(out, "{\n");
    if (x->generation && !json_parse(&json, x->generation, x->n_generation, err))
        for (const JsonValue* name = json_members(json.values); name; name = json_next(name)) {
            const JsonValue* value = name + 1;
            int quotes = value->type == JSON_STRING;  // the text of a string lacks its quotes
            if (json_is(name, "eos_token_id") || json_is(name, "bos_token_id")) continue;
            fprintf(out, "  \"%.*s\": %.*s,\n", (int)name->length, name->text, (int)value->length + 2 * quotes,
                    value->text - quotes);
        }
    json_free(&json);
    fprintf(out, "  \"bos_token_id\": %d,\n  \"eos_token_id\": [%d", run->data.begin, run->data.stop);
    if (run->data.tokenizer->stop != run->data.stop) fprintf(out, ", %d", run->data.tokenizer->stop);
    fprintf(out, "]\n}\n");
    return json_end(out, &text);
}
