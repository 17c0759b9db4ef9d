// rollouts.c - several answers to each prompt, with the log-probabilities of their tokens; see rollouts.h.
//
// A prompt goes through the model once, but for its last token, with which each answer begins. Answers to several
// prompts are at work side by side, a token of each in a row, with the keys and values of their prompts and of
// themselves in the KV cache. If one ends, the next takes its place at once: of the same prompt, or of the next one.
// Each data rank does this for its own prompts, and all meet every few tokens to hand finished lines to rank 0.
#define _GNU_SOURCE
#include "run/rl/rollouts.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "run/rl/prompts.h"
#include "run/step/step.h"

typedef struct Extent {
    int first, n;
} Extent;

typedef struct Room {  // rows of the cache: for prompts, or for what answers have so far
    int rows, n;
    Extent* taken;  // (n) in rising order
} Room;

// A Meeting is what ranks tell each other when they meet.
typedef struct Meeting {
    int works, signal;
} Meeting;

typedef struct Rollouts {
    Run* run;
    int turns, turn;  // prompt j is of the data rank j mod turns, this one is `turn`
    Lines lines;
    int64_t n;      // prompts of all ranks that were read
    Prompt* next;   // prompt whose answers have not all started; NULL: a line is to be read
    int lines_end;  // there is no further line
    int n_live, most_live;
    Prompt** prompts;            // (most_live) of the answers at work,
    int* numbers;                // (most_live) their numbers,
    int* last;                   // (most_live) the token that the model has of each next,
    AnswerRows* places;          // (most_live) and where they are
    SideBySide side;             // the same, for the model
    Prompt** fresh;              // (most_live + 1) prompts that have a place, and wait to go through the model,
    int n_fresh;                 //
    int *lengths, *packed;       // (most_live + 1) and (Batch.max_tokens) of a row of them
    Room prompt_room, own_room;  // room for new tokens follows the first one
    FILE* out;                   // lines of this rank that rank 0 has not: "NUMBER LINE"
    char* out_text;              //
    size_t out_bytes;            //
    Made made, sum;              // made: by this rank since ranks met last; sum: by all, on rank 0
    char** all;                  // (prompts) lines, on rank 0
    int64_t n_all;               // prompts of all files
    double told, started;
} Rollouts;

uint64_t rollouts_seed(uint64_t seed, int64_t prompt, int answer) {
    return hash64(hash64(hash64(seed) ^ (uint64_t)prompt) ^ (uint64_t)answer);
}

Prompts rollouts_look(const Run* run) {
    const Config* c = &run->config;
    Lines lines = {.paths = &c->data};
    Prompts all = {0, INT_MAX, 0};
    if (!config_was_given(c, "--data")) die("--rollouts: expected the prompts, found none; try --data FILE");
    for (; lines_next(&lines); all.n++) {
        Prompt* p = prompt_read(run, &lines, all.n);
        all.shortest = MIN(all.shortest, p->n), all.longest = MAX(all.longest, p->n);
        prompt_free(p, 0);
    }
    lines_close(&lines);
    if (all.n == 0) die("--rollouts: no prompts in --data");
    return all;
}

// All ranks of ZeRO stage 3 need each layer at once, so they all draw all answers.
int rollouts_turns(const Run* run) {
    const Model* m = &run->model;
    return run_most(run, m->world, m->ranks->zero.stage) < 3 ? m->comm->size : 1;
}

// The cache holds each answer's tokens and a new one, the prompts of these answers, and a prompt on its way out.
void rollouts_size(Cluster* cluster, const Prompts* prompts, const Config* config) {
    cluster->prompts = prompts->n;
    int64_t n = cluster->answers, most = INT_MAX / 2, sharing = MIN(CEIL_DIV(n, config->answers) + 1, prompts->n);
    cluster->answer_tokens = (int)MIN(n * MIN(config->tokens, config->context - prompts->shortest), most);
    cluster->cache_tokens = (int)MIN(n + sharing * prompts->longest, most);
}

// ---- the cache: who comes takes the first gap

static int take_rows(Room* room, int n) {
    int i = 0, first = 0;
    for (; i < room->n && room->taken[i].first - first < n; i++) first = room->taken[i].first + room->taken[i].n;
    if (i == room->n && room->rows - first < n) return -1;
    memmove(room->taken + i + 1, room->taken + i, sizeof *room->taken * (size_t)(room->n++ - i));
    room->taken[i] = (Extent){first, n};
    return first;
}

static void give_rows(Room* room, int first) {
    int i = 0;
    while (room->taken[i].first != first) i++;
    memmove(room->taken + i, room->taken + i + 1, sizeof *room->taken * (size_t)(--room->n - i));
}

// ---- answers come and go

// Finds a place for a prompt, which then waits for run_prompts. 0, or -1: there is no room.
static int place_prompt(Rollouts* r, Prompt* p) {
    if (p->place >= 0) return 0;
    if ((p->place = take_rows(&r->prompt_room, p->n - 1)) < 0) return -1;
    r->fresh[r->n_fresh++] = p;
    return 0;
}

// Runs all tokens but the last of waiting prompts. Prompts whose places follow each other are a row, as many as fit.
static void run_prompts(Rollouts* r) {
    int capacity = r->run->model.shape.context;  // every prompt fits in it
    for (int i = 0; i < r->n_fresh;) {
        int place = r->fresh[i]->place, N = 0, n = 0;
        for (; i < r->n_fresh && r->fresh[i]->place == place + N && N + r->fresh[i]->n - 1 <= capacity; i++) {
            r->lengths[n] = r->fresh[i]->n - 1;
            memcpy(r->packed + N, r->fresh[i]->tokens, sizeof(int) * (size_t)r->lengths[n]);
            N += r->lengths[n++];
        }
        run_decode(r->run, r->packed, r->lengths, n, place, 0);
    }
    r->n_fresh = 0;
}

// Returns the next prompt of this rank; NULL: there is none.
static Prompt* next_prompt(Rollouts* r) {
    while (!r->lines_end) {
        if (r->n == r->n_all || !lines_next(&r->lines)) r->lines_end = 1;
        else if (r->n++ % r->turns == r->turn) {
            Prompt* p = prompt_read(r->run, &r->lines, r->n - 1);
            p->answers = (Drawn*)rollouts_take((size_t)r->run->config.answers, sizeof *p->answers);
            return p;
        }
    }
    return NULL;
}

// Starts as many answers as there is room for. Those of one prompt stand side by side, since only the last prompt has
// some that have not started.
static void start_answers(Rollouts* r) {
    while (r->n_live < r->most_live) {
        Prompt* p = r->next = r->next ? r->next : next_prompt(r);
        int own = p && place_prompt(r, p) == 0 ? take_rows(&r->own_room, p->most) : -1, k = r->n_live;
        if (p && own < 0 && r->n_live == 0)  // the first look at all lines has made room for each
            die("--data: line %" PRId64 " was shorter before: expected files that stay as they are", r->lines.number);
        if (own < 0) return;
        Drawn* x = &p->answers[p->started];
        x->tokens = (int*)rollouts_take((size_t)p->most, sizeof *x->tokens + sizeof *x->logprobs);
        x->logprobs = (float*)(x->tokens + p->most);
        r->prompts[k] = p, r->numbers[k] = p->started++, r->last[k] = p->tokens[p->n - 1];
        r->places[k] = (AnswerRows){p->place, p->n - 1, own, 0};
        r->n_live++;
        if (p->started == r->run->config.answers) r->next = NULL;
    }
}

// Draws a token of each answer.
static void draw_tokens(Rollouts* r) {
    Run* run = r->run;
    int n = r->side.n = r->n_live;
    run->batch.planned->answers = &r->side;
    run_decode(run, r->last, &n, 1, 0, r->prompt_room.rows);
    run->batch.planned->answers = NULL;
    for (int k = 0; k < n; k++) {
        uint64_t seed = rollouts_seed((uint64_t)run->config.seed, r->prompts[k]->number, r->numbers[k]);
        run->draws[k].u = random_uniform(seed, (uint64_t)r->places[k].length);
    }
    run_draw(run, 0, n);
    for (int k = 0; k < n; k++) {
        const Draw* draw = &run->draws[k];
        Drawn* x = &r->prompts[k]->answers[r->numbers[k]];
        if (!isfinite(draw->logprob)) die("--rollouts: logits of %s are not finite", run->books->start_from);
        x->tokens[x->n] = r->last[k] = draw->token, x->logprobs[x->n++] = draw->logprob;
        x->ended = draw->token == run->data.begin || draw->token == run->data.stop;
        r->places[k].length++;
    }
}

// Lets answers that have ended, or have no room, make room for others.
static void end_answers(Rollouts* r) {
    int left = 0, all = r->run->config.answers;
    for (int k = 0; k < r->n_live; k++) {
        Prompt* p = r->prompts[k];
        const Drawn* x = &p->answers[r->numbers[k]];
        if (!x->ended && x->n < p->most) {
            r->prompts[left] = p, r->numbers[left] = r->numbers[k];
            r->last[left] = r->last[k], r->places[left++] = r->places[k];
            continue;
        }
        give_rows(&r->own_room, r->places[k].own);
        if (++p->finished < all) continue;
        prompt_put(r->out, p, r->run->data.tokenizer, &r->made);
        give_rows(&r->prompt_room, p->place);
        prompt_free(p, all);
    }
    r->n_live = left;
}

// ---- ranks meet

static void tell(Rollouts* r) {
    double now = now_seconds();
    int ends = r->sum.prompts == r->n_all;
    if (!isatty(STDERR_FILENO) || (now - r->told < 1 && !ends)) return;
    r->told = now;
    if (ends) fprintf(stderr, "\r\033[K");
    else
        fprintf(stderr, "\r\033[Krollouts: %" PRId64 " of %" PRId64 " prompts, %.0f tok/s", r->sum.prompts, r->n_all,
                (double)r->sum.tokens / (now - r->started));
}

// Keeps on rank 0 the lines, "NUMBER LINE", that a rank has finished.
static void keep_lines(Rollouts* r, const char* text, const Made* made) {
    for (const char *at = text, *end; at < text + made->bytes; at = end + 1) {
        char* line = NULL;
        int64_t number = strtoll(at, &line, 10);
        end = strchr(at, '\n');
        if (!(r->all[number] = strndup(line + 1, (size_t)(end - line)))) die("--rollouts: no memory for a line");
    }
    r->sum.prompts += made->prompts, r->sum.answers += made->answers;
    r->sum.tokens += made->tokens, r->sum.ended += made->ended;
}

static void open_out(Rollouts* r) {
    r->made = (Made){0};
    r->out = open_memstream(&r->out_text, &r->out_bytes);
    if (!r->out) die("--rollouts: no memory for lines");
}

// Sends finished lines of all data ranks to rank 0.
static void hand_over(Rollouts* r) {
    Comm* c = r->run->model.comm;
    if (r->turns == 1 && !r->made.prompts) return;
    if (fflush(r->out)) die("--rollouts: no memory for lines");
    r->made.bytes = r->out_bytes;
    Made* all = r->turns > 1 ? (Made*)run_ask_all(r->run, c, &r->made, sizeof r->made) : &r->made;
    size_t most = 0;
    for (int i = 0; i < r->turns; i++) most = MAX(most, all[i].bytes);
    if (most == 0) {
        free(all);  // no rank has finished a line
        return;
    }
    if (fclose(r->out)) die("--rollouts: no memory for lines");
    char* mine = (char*)realloc(r->out_text, most + 1);
    if (!mine) die("--rollouts: no memory for lines of %zu bytes", most);
    char* lines = r->turns > 1 ? (char*)run_ask_all(r->run, c, mine, most) : mine;
    for (int i = 0; i < r->turns && r->all; i++) keep_lines(r, lines + (size_t)i * most, &all[i]);
    if (r->all) tell(r);
    if (r->turns > 1) free(all);
    if (lines != mine) free(lines);
    free(mine);
    open_out(r);
}

// Returns 0 if all answers are there, or a signal has ended the drawing on some rank.
static int meet(Rollouts* r) {
    Run* run = r->run;
    Comm* c = run->model.world;
    Meeting mine = {r->n_live > 0 || r->next || !r->lines_end, (int)interrupted}, *all = &mine;
    int works = 0;
    if (c->size > 1) all = (Meeting*)run_ask_all(run, c, &mine, sizeof mine);
    for (int i = 0; i < c->size; i++) works |= all[i].works, run->stopped_by = MAX(run->stopped_by, all[i].signal);
    if (c->size > 1) free(all);
    hand_over(r);
    return works && !run->stopped_by;
}

// ---- all

static void open_rollouts(Rollouts* r, Run* run) {
    Err err;
    const Model* m = &run->model;
    size_t most = (size_t)run->cluster->answers;
    *r = (Rollouts){.run = run, .turns = rollouts_turns(run)};
    r->turn = r->turns > 1 ? m->comm->rank : 0;
    if (disk_may_put(run->config.rollouts, err)) die("--rollouts: %s", err);
    r->lines.paths = &run->config.data;
    r->most_live = (int)most;
    r->prompts = (Prompt**)rollouts_take(most, sizeof *r->prompts),
    r->places = (AnswerRows*)rollouts_take(most, sizeof *r->places);
    r->numbers = (int*)rollouts_take(2 * most, sizeof *r->numbers), r->last = r->numbers + most;
    Extent* taken = (Extent*)rollouts_take(2 * most + 1, sizeof *taken);
    r->prompt_room = (Room){run->cluster->cache_tokens - (int)most, 0, taken};
    r->own_room = (Room){run->cluster->answer_tokens, 0, taken + most + 1};
    r->fresh = (Prompt**)rollouts_take(most + 1, sizeof *r->fresh);
    r->lengths = (int*)rollouts_take(most + 1 + (size_t)run->batch.max_tokens, sizeof *r->lengths);
    r->packed = r->lengths + most + 1;
    r->side.of = r->places;
    r->n_all = run->cluster->prompts;
    if (m->world->rank == 0) r->all = (char**)rollouts_take((size_t)r->n_all, sizeof *r->all);
    r->started = now_seconds();
    run_catch_signals(run);
    open_out(r);
}

static void put_rest(Rollouts* r, Prompt* p) {
    if (p->finished) prompt_put(r->out, p, r->run->data.tokenizer, &r->made);
    prompt_free(p, r->run->config.answers);
}

// Leaves out the answers at work that a signal has cut off, and prompts without any other.
static void put_what_is_finished(Rollouts* r) {
    int is_live = r->n_live && r->prompts[r->n_live - 1] == r->next;
    for (int k = 0; k < r->n_live; k++)
        if (k + 1 == r->n_live || r->prompts[k + 1] != r->prompts[k]) put_rest(r, r->prompts[k]);
    if (r->next && !is_live) put_rest(r, r->next);
    hand_over(r);
}

static void write_all(Rollouts* r) {
    char err[ERR_BYTES], *text = NULL;
    size_t bytes = 0;
    FILE* out = open_memstream(&text, &bytes);
    for (int64_t j = 0; out && j < r->n_all; j++)
        if (r->all[j]) fputs(r->all[j], out);
    if (!out || fclose(out)) die("--rollouts: no memory for all answers");
    if (disk_put_named(r->run->config.rollouts, text, bytes, err)) die("--rollouts: %s", err);
    free(text);
}

static void say_end(const Rollouts* r) {
    char prompts[64], all[96] = "";
    const Config* c = &r->run->config;
    double seconds = now_seconds() - r->started, answers = (double)r->sum.answers, tokens = (double)r->sum.tokens;
    if (r->run->stopped_by)
        snprintf(all, sizeof all, "stopped by a signal, of %.0f to %" PRId64 ": ", (double)r->n_all * c->answers,
                 r->n_all);
    if (!answers) {
        say(stdout, "%s: %snone was finished, and nothing was written", c->rollouts, all);
        return;
    }
    say(stdout, "%s: %s%.0f answers to %s by %s, %.1f tokens each, %.1f %% ended by themselves; %.0f tok/s, %.1f s",
        c->rollouts, all, answers, text_many(r->sum.prompts, "prompt", prompts), r->run->books->start_from,
        tokens / answers, 100 * (double)r->sum.ended / answers, tokens / seconds, seconds);
}

static void close_rollouts(Rollouts* r) {
    for (int64_t j = 0; r->all && j < r->n_all; j++) free(r->all[j]);
    lines_close(&r->lines);
    fclose(r->out);
    free(r->out_text), free(r->all), free(r->prompts), free(r->numbers), free(r->places), free(r->prompt_room.taken);
    free(r->fresh), free(r->lengths);
}

void run_rollouts(Run* run) {
    enum { MEET = 8 };  // tokens from one meeting of several ranks to the next
    Rollouts r;
    open_rollouts(&r, run);
    int each = run->model.world->size > 1 ? MEET : 1;
    do {
        for (int i = 0; i < each; i++) {
            start_answers(&r), run_prompts(&r);
            if (r.n_live) draw_tokens(&r), end_answers(&r);
        }
    } while (meet(&r));
    if (run->stopped_by) put_what_is_finished(&r);
    if (r.all && r.sum.answers) write_all(&r);
    if (r.all) say_end(&r);
    close_rollouts(&r);
}
