// talk.c - see talk.h. The whole conversation is rendered anew for each answer; tokens that it begins with as before
// stay in the KV cache. If it outgrows the context, its oldest turns are left out, but for a system message.
#define _GNU_SOURCE  // getline, open_memstream
#include "run/rl/talk.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "run/core.h"
#include "run/files/chats.h"

enum { MOST_LINE = 1 << 16, LEAST_ANSWER = 16, A_LOOK = 200 };  // bytes; tokens of an answer; ms between signs of life

typedef struct Talk {
    Run* run;
    ChatMessage* list;  // (n); contents are the talk's
    int n, capacity;
    int is_terminal;
    int *text, n_text, cached;  // (context + 1) tokens, of which the first are in the KV cache
    uint64_t answers;           // drawn so far
} Talk;

static volatile sig_atomic_t interrupted;
static void on_interrupt(int number) { interrupted = number; }

static void say_message(Talk* x, const char* role, char* content, size_t n) {
    if (x->n == x->capacity) x->capacity = 2 * x->capacity + 8;
    x->list = (ChatMessage*)realloc(x->list, (size_t)x->capacity * sizeof *x->list);
    if (!x->list || !content) die("--chat: no memory for %d messages", x->n + 1);
    x->list[x->n++] = (ChatMessage){.role = role, .content = content, .n = n};
}

static void forget(Talk* x, int i) {
    free((char*)x->list[i].content);
    memmove(&x->list[i], &x->list[i + 1], sizeof *x->list * (size_t)(--x->n - i));
}

// ---- what the model reads

// Renders n messages. Returns their tokens, in `w`.
static int render(const Talk* x, ChatWriter* w, const ChatMessage* list, int n) {
    char err[ERR_BYTES];
    *w = (ChatWriter){.chat = run_chat(x->run, "--chat"), .tokenizer = x->run->data.tokenizer, .err = err};
    if (chat_render(w, list, n)) die("--chat: %s", err);
    return (int)w->n;
}

// Returns 1 if the system message and the last one leave room for an answer.
static int last_fits(const Talk* x) {
    ChatWriter w;
    int oldest = x->n > 1 && !strcmp(x->list[0].role, "system");
    ChatMessage list[2] = {x->list[0], x->list[x->n - 1]};
    int n = render(x, &w, list + !oldest, 1 + oldest);
    chat_free(&w);
    return n + LEAST_ANSWER <= x->run->model.shape.context;
}

// Renders as much of it as leaves room for an answer, into text. Returns 0 if the last message alone is too long, and
// forgets nothing then.
static int prepare(Talk* x) {
    ChatWriter w;
    int context = x->run->model.shape.context, same = 0, n;
    if (!last_fits(x)) return 0;
    while ((n = render(x, &w, x->list, x->n)) + LEAST_ANSWER > context) {
        int oldest = !strcmp(x->list[0].role, "system");
        chat_free(&w);
        forget(x, oldest);
        while (oldest < x->n - 1 && chat_learns(&x->list[oldest])) forget(x, oldest);
    }
    while (same < MIN(x->cached, n - 1) && w.tokens[same] == x->text[same]) same++;
    memcpy(x->text, w.tokens, (size_t)n * sizeof(int));
    x->n_text = n, x->cached = same;
    chat_free(&w);
    return 1;
}

// ---- what it says

// Draws the next token.
static int draw(Talk* x, uint64_t seed, int i) {
    Run* run = x->run;
    int last = 0;
    for (int N; (N = MIN(x->n_text - x->cached, run->settled.capacity)) > 0; x->cached += N)
        last = N, run_decode(run, x->text + x->cached, &N, 1, 0, x->cached);
    run->draws->u = random_uniform(seed, (uint64_t)i);
    run_draw(run, last - 1, 1);
    return run->draws->token;
}

// Returns 1 if a person has interrupted the answer, as rank 0 knows.
static int is_interrupted(const Run* run) {
    int now = interrupted;
    if (run->model.world->size > 1) run_tell_all(run->model.world, &now, sizeof now);
    return now;
}

// Prints an answer as it comes, and adds it to the conversation.
static void answer(Talk* x) {
    Run* run = x->run;
    const Tokenizer* t = run->data.tokenizer;
    TextFilter filter = {{0}, 0, 0};
    char* said = NULL;
    size_t bytes = 0;
    FILE* copy = open_memstream(&said, &bytes);
    uint64_t seed = hash64((uint64_t)run->config.seed + x->answers++);
    int room = MIN(run->config.tokens, run->model.shape.context - x->n_text), stop = run_chat(run, "--chat")->end;
    if (!copy) die("--chat: no memory for an answer");
    for (int i = 0; i < room && !is_interrupted(run); i++) {
        int token = draw(x, seed, i);
        if (token == run->data.begin || token == run->data.stop || token == t->stop || token == stop) break;
        size_t n = 0;
        const char* piece = t->decode(t, token, &n);
        text_print(stdout, &filter, piece, n);
        fwrite(piece, 1, n, copy);
        fflush(stdout);
        x->text[x->n_text++] = token;
    }
    text_print_end(stdout, &filter);
    putchar('\n'), fflush(stdout);
    if (fclose(copy)) die("--chat: no memory for an answer");
    say_message(x, "assistant", said, bytes);
}

// ---- what a person says

// Waits for input while ranks that wait see that rank 0 lives. Standard input has no buffer then.
static void wait_for_line(const Talk* x) {
    Comm* world = x->run->model.world;
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    for (int is_there = world->size == 1; !is_there; run_tell_all(world, &is_there, sizeof is_there))
        if (world->rank == 0) is_there = poll(&input, 1, A_LOOK) != 0;
}

// Reads a line without its end, and tells all ranks. Returns its bytes; -1: there is no further one. What was read of a
// line that Ctrl-C ends is dropped.
static ssize_t read_line(const Talk* x, char line[MOST_LINE]) {
    ssize_t n = -1;
    interrupted = 0;
    if (x->is_terminal && x->run->model.world->rank == 0) fputs("> ", stdout), fflush(stdout);
    wait_for_line(x);
    if (x->run->model.world->rank == 0) {
        char* text = NULL;
        size_t room = 0;
        if (!interrupted) n = getline(&text, &room, stdin);
        if (interrupted) n = 0, clearerr(stdin), putchar('\n');
        while (n > 0 && strchr("\r\n", text[n - 1])) n--;
        if (n >= MOST_LINE) die("--chat: expected a line of at most %d bytes, found %zd", MOST_LINE - 1, n);
        if (n > 0) memcpy(line, text, (size_t)n);
        free(text);
    }
    run_tell_all(x->run->model.world, &n, sizeof n);
    if (n > 0) run_tell_all(x->run->model.world, line, (size_t)n);
    return n;
}

// Does what a line says. Returns 0 if it ends the conversation.
static int take_line(Talk* x, const char* line, size_t n) {
    int again = n == 6 && !memcmp(line, "/again", 6);
    if (n == 5 && !memcmp(line, "/quit", 5)) return 0;
    if (n == 0) return 1;
    if (n > 0 && line[0] == '/' && !again) return say(stdout, "/again answers anew, /quit or Ctrl-D ends"), 1;
    if (again && (x->n < 2 || strcmp(x->list[x->n - 1].role, "assistant") != 0)) return 1;
    if (again) forget(x, x->n - 1);
    else {
        char* content = (char*)calloc(n + 1, 1);
        if (content) memcpy(content, line, n);
        say_message(x, "user", content, n);
    }
    interrupted = 0;
    if (prepare(x)) answer(x);
    else
        say(stdout, "that is more than the context of %d tokens holds", x->run->model.shape.context),
            forget(x, x->n - 1);
    return 1;
}

void run_talk(Run* run) {
    Talk x = {.run = run, .is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    struct sigaction action = {.sa_handler = on_interrupt}, before;
    static char line[MOST_LINE];
    run_chat(run, "--chat");
    x.text = (int*)malloc(((size_t)run->model.shape.context + 1) * sizeof(int));
    if (!x.text) die("--chat: no memory for %d tokens", run->model.shape.context);
    if (run->config.system) say_message(&x, "system", strdup(run->config.system), strlen(run->config.system));
    if (x.n && !last_fits(&x)) die("--system: more than the context of %d tokens holds", run->model.shape.context);
    if (run->model.world->size > 1) setvbuf(stdin, NULL, _IONBF, 0);
    sigaction(SIGINT, &action, &before);
    if (x.is_terminal) say(stdout, "chat    /again answers anew, /quit or Ctrl-D ends, Ctrl-C ends an answer");
    for (ssize_t n; (n = read_line(&x, line)) >= 0 && take_line(&x, line, (size_t)n);) {}
    sigaction(SIGINT, &before, NULL);
    while (x.n) forget(&x, x.n - 1);
    free(x.list), free(x.text);
}
