// chat.h - chats as models are served them: messages become the text and the tokens that a chat template makes.
//
// A template is a program (Jinja) in a model's tokenizer_config.json or chat_template.jinja. None is run here. Known
// ones are recognized, whatever system message they put before chats that have none, and take one of these forms:
//
//   plain    ROLE: CONTENT, then a blank line, or after an assistant's the end of the text    no template, no tokens
//   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n                                            SmolLM2, Qwen2
//   qwen     the same; answers of tools stand in a user's turn                                Qwen2.5, Qwen3-2507
//   qwen3    the same; answers to the last question begin with a thought                      Qwen3
//   llama3   <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>                    Llama 3
//   llama31  the same; every chat begins with a system message that says two dates            Llama 3.1 to 3.3
//
// The date of today is that of the templates themselves, 26 Jul 2024, so that a chat is the same on every day.
#pragma once
#include "data/docs.h"
#include "data/json.h"

typedef enum ChatForm {
    CHAT_PLAIN,
    CHAT_CHATML,
    CHAT_QWEN,
    CHAT_QWEN3,
    CHAT_LLAMA3,
    CHAT_LLAMA31,
    N_CHAT_FORMS
} ChatForm;

enum { CHAT_SYSTEM = 256 };

typedef struct ChatTemplate {
    ChatForm form;
    int before;                  // token before the first message; -1: none
    int begin, header_end, end;  // tokens around a message; -1: none
    const char *after_role, *after_content;
    int adds_system;  // 1: a chat without a system message gets `system`
    char system[CHAT_SYSTEM];
} ChatTemplate;

// Finds the form of a template (n bytes), or, if text is NULL, of a vocabulary by the tokens that it has. 0, or -1 with
// a message: the template is none of those known, or the vocabulary lacks its tokens.
int chat_find(ChatTemplate* out, const Tokenizer* t, const char* text, size_t n, Err err);
// Its parts: a hash of a template without white space and without the system message that it adds; the form that has
// this hash, N_CHAT_FORMS if none does; and the template of a form, which adds n bytes of system message, if n > 0.
uint64_t chat_hash(const char* text, size_t n);
ChatForm chat_form(uint64_t hash);
int chat_open(ChatTemplate* out, ChatForm form, const Tokenizer* t, const char* system, size_t n, Err err);
// Reads the text of the template beside a tokenizer, in the directory `dir`. Returns 0 and text (*n bytes, the
// caller's), NULL if there is none; or -1 with a message.
int chat_read(char** text, size_t* n, const char* dir, Err err);
// Returns a template (Jinja) of a form that a vocabulary has without one, for the checkpoints of a model tuned so.
const char* chat_text(ChatForm form);

typedef struct ChatMessage {
    const char *role, *content, *thought;  // thought NULL: it may stand in the content, between <think> and </think>
    size_t n, n_thought;                   // bytes of content and thought
    int64_t replaced;                      // halves of surrogate pairs in it, now U+FFFD
} ChatMessage;

// Appends the messages of a JSON array to *list (*n), which realloc moves. Their strings go to scratch + *used, which
// has room for the array's text. Their forms are in data/README.md. 0, or -1 with a message.
int chat_read_list(ChatMessage** list, int* n, const JsonValue* messages, char* scratch, size_t* used, Err err);

// A chat on its way to tokens. Text between tokens is encoded in one piece, as a server does, but for what an assistant
// says: it begins at a token.
typedef struct ChatWriter {
    const ChatTemplate* chat;
    const Tokenizer* tokenizer;
    const ChatMessage* list;
    int n_list;
    int* tokens;  // (n) made so far; the caller may take them, and set n to 0
    int64_t n, capacity;
    char* text;  // (n_text) that is not encoded yet
    int64_t n_text, text_capacity;
    char* err;
} ChatWriter;

// These return 0, or -1 with a message. chat_begin puts what stands before the messages; then come, for each message,
// its header, its content with the token that ends it, and what follows that. `as` is what stands there in place of
// message i, such as another answer at the end of a path.
int chat_begin(ChatWriter* w, const ChatMessage* list, int n);
int chat_header(ChatWriter* w, int i);
int chat_content(ChatWriter* w, int i, const ChatMessage* as);
int chat_after(ChatWriter* w, int i);
int chat_flush(ChatWriter* w);  // encodes the text that is left
// Puts all messages, and the header of the assistant's next one; flushes.
int chat_render(ChatWriter* w, const ChatMessage* list, int n);
void chat_free(ChatWriter* w);

static inline int chat_learns(const ChatMessage* m) { return !strcmp(m->role, "assistant"); }
