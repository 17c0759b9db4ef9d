// rollouts.c - several answers to each prompt, with the log-probabilities of their tokens; see rollouts.h.
//
// A prompt goes through the model once, but for its last token, with which each answer begins. Answers go on from the
// prompt's keys and values in the KV cache, as many side by side as it has room for; then others take their places.
#define _GNU_SOURCE
#include "run/rl/rollouts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/json.h"

typedef struct Made {
    size_t bytes;  // of a line
    int64_t tokens, ended;
} Made;

typedef struct Rollouts {
    Run* run;
    int generates;        // 0: lines are only looked at
    int turns, turn;      // prompt j is of the data rank j mod turns, this one is `turn`
    int64_t n, all;       // prompts so far, of all files
    int cache;            // tokens of the KV cache, of every rank
    SideBySide side;      // those at work, whose tokens and log-probabilities are, row by row,
    int* tokens;          // (cache)
    double* logprobs;     // (cache)
    int *length, *ended;  // (answers) tokens; whether the last one says so
    int* last;            // (answers) what the model has of each next
    char* line;           // of this rank's prompt, until all have one
    Made made, sum;       // this line; all lines, on rank 0
    FILE* file;           // what shall stand there, on rank 0
    char* text;           // of it
    size_t bytes;
    double told;
} Rollouts;

// A line of the data.
typedef struct Prompt {
    Json json;
    int* tokens;  // (n) with the end-of-text before them
    int n;
} Prompt;

uint64_t rollouts_seed(uint64_t seed, int64_t prompt, int answer) {
    return hash64(hash64(hash64(seed) ^ (uint64_t)prompt) ^ (uint64_t)answer);
}

// ---- a prompt

static int prompt_encode(Prompt* p, const Run* run, char* scratch, Err err) {
    const Tokenizer* t = run->data.tokenizer;
    const JsonValue* value = json_get(&p->json, p->json.values, "prompt");
    int context = run->model.shape.context;
    char names[256];
    if (!value) return fail(err, "no \"prompt\" in it, but %s", json_names(&p->json, names, sizeof names));
    int64_t n = json_string(value, scratch);
    if (n < 0) return fail(err, "\"prompt\" is no string");
    p->tokens = sample_begin(run, (size_t)n * (size_t)t->most);
    p->n = 1 + (int)t->encode(t, p->tokens + 1, scratch, (size_t)n);
    if (p->n == 1) return fail(err, "a prompt without tokens");
    if (p->n < context) return 0;
    return fail(err, "the prompt has %d tokens, and an answer no room in --context %d", p->n, context);
}

// ---- its answers

// Token t of answer i to prompt j, of the row's token k.
static void draw_token(Rollouts* r, int64_t j, int i, int k, int t) {
    Run* run = r->run;
    const Config* c = &run->config;
    int V = run->model.shape.V, at = k * r->side.answers.room + t;
    double u = random_uniform(rollouts_seed((uint64_t)c->seed, j, i), (uint64_t)t);
    token_logits(run, k);
    int token = choose_token(run->host_logits, V, c->temperature, c->top_k, u, run->host_scratch);
    r->tokens[at] = token, r->length[k] = t + 1, r->ended[k] = token == run->data.begin || token == run->data.stop;
    r->logprobs[at] = log_softmax(run->host_logits, V, token);
    if (!isfinite(r->logprobs[at])) die("--rollouts: logits of %s are not finite", run->books->start_from);
}

// Answers from `first` on, as many as there is room for. Returns how many. Those that have ended go on, unheard.
static int draw_answers(Rollouts* r, const Prompt* p, int64_t j, int first) {
    Run* run = r->run;
    Answers* x = &r->side.answers;
    int left = 1, *tokens = r->last;
    x->prompt = p->n - 1, x->room = MIN(run->config.tokens, run->model.shape.context - p->n);
    x->n = MIN(run->config.answers - first, (r->cache - x->prompt) / (x->room + 1));
    x->n = MIN(x->n, MAX(1, run->settled.capacity / 4));
    memset(r->ended, 0, sizeof *r->ended * (size_t)x->n);
    for (int k = 0; k < x->n; k++) tokens[k] = p->tokens[p->n - 1];
    run->batch.planned->answers = &r->side;
    for (x->step = 0; x->step < x->room && left; x->step++) {
        run_decode(run, tokens, x->n, x->prompt + x->n * x->room);
        left = 0;
        for (int k = 0; k < x->n; k++) {
            if (!r->ended[k]) draw_token(r, j, first + k, k, x->step), tokens[k] = r->tokens[k * x->room + x->step];
            left += !r->ended[k];
        }
    }
    run->batch.planned->answers = NULL;
    return x->n;
}

static void put_text(FILE* out, const Tokenizer* t, const int* tokens, int n) {
    char *text = NULL, *quoted = NULL;
    size_t bytes = 0;
    FILE* all = open_memstream(&text, &bytes);
    for (int i = 0; all && i < n; i++) {
        size_t length = 0;
        const char* piece = t->decode(t, tokens[i], &length);
        fwrite(piece, 1, length, all);
    }
    if (all && !fclose(all)) quoted = (char*)malloc(6 * bytes + 3);
    if (!quoted) die("--rollouts: no memory for the text of an answer");
    fwrite(quoted, 1, json_quote(quoted, text, bytes), out);
    free(quoted);
    free(text);
}

// The one in row k.
static void put_answer(Rollouts* r, FILE* out, int k) {
    int n = r->length[k];
    const int* tokens = r->tokens + k * r->side.answers.room;
    const double* logprobs = r->logprobs + k * r->side.answers.room;
    fprintf(out, "{\"text\": ");
    put_text(out, r->run->data.tokenizer, tokens, n - r->ended[k]);
    for (int t = 0; t < n; t++) fprintf(out, "%s%d", t ? ", " : ", \"tokens\": [", tokens[t]);
    for (int t = 0; t < n; t++) fprintf(out, "%s%.9g", t ? ", " : "], \"logprobs\": [", logprobs[t]);
    fprintf(out, "], \"ended\": %s}", r->ended[k] ? "true" : "false");
    r->made.tokens += n, r->made.ended += r->ended[k];
}

// The members of the prompt's line as they stand there, and the answers.
static void put_line(Rollouts* r, const Prompt* p, int64_t j) {
    FILE* out = open_memstream(&r->line, &r->made.bytes);
    const JsonValue *root = p->json.values, *name = root + 1;
    if (!out) die("--rollouts: no memory for a line");
    for (int at = 0, n; at < p->n - 1; at += n)
        run_decode(r->run, p->tokens + at, n = MIN(p->n - 1 - at, r->run->settled.capacity), at);
    fputc('{', out);
    for (int i = 0; i < root->n; i++, name = json_next(&p->json, name + 1)) {
        const JsonValue* value = name + 1;
        int quotes = value->type == JSON_STRING;  // which its text is without
        if (json_is(name, "answers")) continue;
        fprintf(out, "\"%.*s\": ", (int)name->length, name->text);
        fwrite(value->text - quotes, 1, value->length + 2 * (size_t)quotes, out);
        fputs(", ", out);
    }
    fputs("\"answers\": [", out);
    for (int first = 0, n; first < r->run->config.answers; first += n) {
        n = draw_answers(r, p, j, first);
        for (int k = 0; k < n; k++) fputs(first + k ? ", " : "", out), put_answer(r, out, k);
    }
    fputs("]}\n", out);
    if (fclose(out)) die("--rollouts: no memory for a line");
}

// ---- all prompts

static void tell(Rollouts* r) {
    double now = now_seconds();
    if (!isatty(STDERR_FILENO) || (now - r->told < 1 && r->n < r->all)) return;
    r->told = now;
    if (r->n < r->all) fprintf(stderr, "\r\033[Krollouts: %" PRId64 " of %" PRId64 " prompts", r->n, r->all);
    else fprintf(stderr, "\r\033[K");
}

// Rank 0 takes the lines of all data ranks, of which some may have none.
static void end_round(Rollouts* r) {
    Run* run = r->run;
    Comm* c = run->model.comm;
    Made* made = r->turns > 1 ? (Made*)run_ask_all(run, c, &r->made, sizeof r->made) : &r->made;
    size_t most = 0;
    for (int k = 0; k < r->turns; k++) most = MAX(most, made[k].bytes);
    char *mine = (char*)realloc(r->line, most), *lines = mine;
    if (!mine) die("--rollouts: no memory for lines of %zu bytes", most);
    if (r->turns > 1) lines = (char*)run_ask_all(run, c, mine, most);
    for (int k = 0; k < r->turns && r->file; k++) {
        fwrite(lines + (size_t)k * most, 1, made[k].bytes, r->file);
        r->sum.tokens += made[k].tokens, r->sum.ended += made[k].ended;
    }
    if (r->file) tell(r);
    if (r->turns > 1) free(lines), free(made);
    free(mine);
    r->line = NULL, r->made = (Made){0};
}

static int take_line(Rollouts* r, const char* line, size_t n, Err err) {
    Prompt p = {{NULL, 0}, NULL, 0};
    if (json_parse(&p.json, line, n, err)) return -1;
    char* scratch = (char*)malloc(n + 1);
    int failed = scratch ? prompt_encode(&p, r->run, scratch, err) : fail(err, "no memory for %zu bytes", n);
    int64_t j = r->n++;
    if (!failed && r->generates && j % r->turns == r->turn) put_line(r, &p, j);
    if (!failed && r->generates && (r->n % r->turns == 0 || r->n == r->all)) end_round(r);
    free(scratch);
    free(p.tokens);
    json_free(&p.json);
    return failed;
}

static void read_files(Rollouts* r, int generates) {
    const PathList* data = &r->run->config.data;
    char *line = NULL, err[ERR_BYTES];
    size_t room = 0;
    r->generates = generates, r->n = 0;
    for (int i = 0; i < data->n; i++) {
        FILE* file = fopen(data->paths[i], "r");
        ssize_t n;
        for (int64_t number = 1; file && (n = getline(&line, &room, file)) > 0; number++)
            if (strspn(line, " \t\r\n") < (size_t)n && take_line(r, line, (size_t)n, err))
                die("%s:%" PRId64 ": %s; --rollouts expects {\"prompt\": \"...\"}, a line each", data->paths[i], number,
                    err);
        if (!file || ferror(file)) die("--data: %s: cannot read: %s", data->paths[i], strerror(errno));
        fclose(file);
    }
    free(line);
}

static void open_rollouts(Rollouts* r, Run* run) {
    char dir[DISK_PATH];
    const Model* m = &run->model;
    const char *path = run->config.rollouts, *slash = strrchr(path, '/');
    int divides = run_most(run, m->world, m->ranks->zero.stage) < 3;  // else all ranks need each layer at once
    *r = (Rollouts){.run = run, .turns = divides ? m->comm->size : 1, .turn = divides ? m->comm->rank : 0};
    if (!config_was_given(&run->config, "--data")) die("--rollouts: expected the prompts, found none; try --data FILE");
    snprintf(dir, sizeof dir, "%.*s", slash ? MAX((int)(slash - path), 1) : 1, slash ? path : ".");
    if (!*path || disk_is_dir(path)) die("--rollouts: expected a file to write, found \"%s\"", path);
    if (access(dir, W_OK)) die("--rollouts: %s: cannot write there: %s", dir, strerror(errno));
    int cache = MAX(m->shape.context, run->cluster->cache_tokens);
    r->cache = -(int)run_most(run, m->world, -cache);  // ranks that compute a row together have one of the same size
    size_t room = (size_t)r->cache, answers = (size_t)run->config.answers;
    r->logprobs = (double*)malloc(sizeof *r->logprobs * room);
    r->tokens = (int*)malloc(sizeof *r->tokens * (room + 3 * answers));
    r->length = r->tokens + room, r->ended = r->length + answers, r->last = r->ended + answers;
    if (m->world->rank == 0) r->file = open_memstream(&r->text, &r->bytes);
    if (!r->logprobs || !r->tokens || (m->world->rank == 0 && !r->file)) die("--rollouts: no memory");
}

static void say_end(const Rollouts* r, double seconds) {
    char prompts[64];
    const Config* c = &r->run->config;
    double answers = (double)r->all * c->answers, tokens = (double)r->sum.tokens;
    say(stdout, "%s: %.0f answers to %s by %s, %.1f tokens each, %.1f %% ended by themselves; %.0f tok/s, %.1f s",
        c->rollouts, answers, text_many(r->all, "prompt", prompts), r->run->books->start_from, tokens / answers,
        100 * (double)r->sum.ended / answers, tokens / seconds, seconds);
}

void run_rollouts(Run* run) {
    Rollouts r;
    char err[ERR_BYTES];
    double started = now_seconds();
    open_rollouts(&r, run);
    read_files(&r, 0);
    if ((r.all = r.n) == 0) die("--rollouts: no prompts in --data");
    read_files(&r, 1);
    free(r.logprobs), free(r.tokens);
    if (!r.file) return;
    if (fclose(r.file)) die("--rollouts: no memory for all answers");
    if (disk_put(run->config.rollouts, r.text, r.bytes, 1, err)) die("--rollouts: %s", err);
    free(r.text);
    say_end(&r, now_seconds() - started);
}
