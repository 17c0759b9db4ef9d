// layout_play.c - see layout_play.h. Functions have the names of those of the engine that they stand for.
#include "plan/search/layout_play.h"

#include <math.h>

enum { ATTENTION, MLP };  // sublayers
enum { COLUMN, ROW };     // their linears

// The messages under way of the round in a slot, by direction.
typedef struct SlotMessages {
    ClockMessage receiving[2], sending[2];
} SlotMessages;

typedef struct StagePlay {
    const PlayedStep* step;
    const PlayedStage* stage;
    RankClock clock;
    double spent[N_LAYOUT_TERMS];
    const LayerTimes* times;  // those of this round, by kind
    const EndTimes* ends;
    ClockMessage *arriving, *leaving;   // (layers + 2) by bucket
    int *in_flight, n_in_flight;        // (layers + 2) buckets whose gradients are leaving
    char *weights_place, *grads_place;  // (layers) 0 or 1: layers in use share these by turns
    int layer_in[2];
    int is_last_row, is_again;
    SlotMessages* slot;  // (stages)
    int next;            // index into its list of tasks
} StagePlay;

static int is_layer(const StagePlay* p, int l) { return l >= 0 && l < p->stage->layers; }
static const LayerTimes* layer(const StagePlay* p, int l) { return &p->times[p->stage->kind[l]]; }
static int zero_of(const StagePlay* p, int l) { return is_layer(p, l) ? p->stage->rows[l].zero : 1; }

static const BucketTimes* bucket(const StagePlay* p, int l) {
    return is_layer(p, l) ? &layer(p, l)->bucket : &p->stage->step.bucket[l >= 0];
}

// ---- weights and gradients, of layers 0 .. L - 1, of the embeddings (-1) and of the classifier (L)

static void begin_gather(StagePlay* p, int l) {
    const BucketTimes* x = bucket(p, l);
    LayoutTerm purpose = zero_of(p, l) == 3 ? TERM_ROUNDS : TERM_STEP;
    if (x->gather > 0) p->arriving[1 + l] = clock_begin(&p->clock, purpose, x->data, x->gather, 0);
}

static void want_layer(StagePlay* p, int l) {
    int* in = &p->layer_in[(int)p->weights_place[l]];
    if (*in == l) return;
    begin_gather(p, l);
    *in = l;
}

static LayoutTerm purpose_of_reduce(const StagePlay* p, int l) { return zero_of(p, l) > 1 ? TERM_ROUNDS : TERM_STEP; }

enum { OF_ROUNDS = -1, ANY = -2 };  // which reductions end; else a layer: those in the way of its gradients

static int is_due(const StagePlay* p, int l, int which) {
    if (which < 0) return which == ANY || zero_of(p, l) > 1;
    return (l - which) % 2 == 0 || (zero_of(p, l) > 1 && p->grads_place[l] == p->grads_place[which]);
}

static void end_reduces(StagePlay* p, int which) {
    int kept = 0;
    for (int i = 0; i < p->n_in_flight; i++) {
        int l = p->in_flight[i];
        if (is_due(p, l, which)) clock_wait(&p->clock, purpose_of_reduce(p, l), p->leaving[1 + l]);
        else p->in_flight[kept++] = l;
    }
    p->n_in_flight = kept;
}

static void begin_reduce(StagePlay* p, int l) {
    const BucketTimes* x = bucket(p, l);
    clock_exchange(&p->clock, purpose_of_reduce(p, l), x->cut, x->replicated);
    if (x->reduce <= 0) return;
    p->leaving[1 + l] = clock_begin(&p->clock, purpose_of_reduce(p, l), x->data, x->reduce, 0);
    p->in_flight[p->n_in_flight++] = l;
}

static void use_layer(StagePlay* p, int l, int direction) {
    if (zero_of(p, l) == 3) want_layer(p, l);
    clock_wait(&p->clock, zero_of(p, l) == 3 ? TERM_ROUNDS : TERM_STEP, p->arriving[1 + l]);
    p->arriving[1 + l] = (ClockMessage){0};
    int next = l + direction;
    while (is_layer(p, next) && zero_of(p, next) < 3) next += direction;
    if (is_layer(p, next)) want_layer(p, next);
    if (direction < 0 && zero_of(p, l) > 1) end_reduces(p, l);
}

static void close_grads(StagePlay* p, int l) {
    if (zero_of(p, l) > 1 || p->is_last_row) begin_reduce(p, l);
    if (l < 0) end_reduces(p, OF_ROUNDS);
}

// ---- a layer

static void compute(StagePlay* p, const LayerTimes* x, LayoutTerm term, double ms) {
    clock_compute(&p->clock, p->is_again ? TERM_AGAIN : term, p->is_again ? ms * x->again : ms);
}

// Gathers the tokens of the ranks that cut a layer, and runs a pass of a matmul over them.
static void gather_and_compute(StagePlay* p, const LayerTimes* x, double ms) {
    if (!p->step->tensor_overlap || x->sums <= 0) {
        clock_exchange(&p->clock, TERM_TENSOR, x->cut, x->sums);
        compute(p, x, TERM_MATMULS, ms);
        return;
    }
    ClockMessage own = {0}, others;
    if (x->first > 0) own = clock_begin(&p->clock, TERM_TENSOR, x->cut, x->first, 0);
    others = clock_begin(&p->clock, TERM_TENSOR, x->cut, x->second, 0);
    clock_wait(&p->clock, TERM_TENSOR, own);
    compute(p, x, TERM_MATMULS, ms * x->half);
    clock_wait(&p->clock, TERM_TENSOR, others);
    compute(p, x, TERM_MATMULS, ms * (1 - x->half));
}

static void block_forward(StagePlay* p, const LayerTimes* x) {
    for (int i = ATTENTION; i <= MLP; i++) {
        int turns = i == ATTENTION;
        gather_and_compute(p, x, x->linear[i][COLUMN]);
        if (turns) clock_exchange(&p->clock, TERM_SEQUENCE, x->turn, x->all_heads);
        if (turns) compute(p, x, TERM_ATTENTION, x->attention);
        if (turns) clock_exchange(&p->clock, TERM_SEQUENCE, x->bucket.data, x->shared);
        if (turns) clock_exchange(&p->clock, TERM_SEQUENCE, x->turn, x->queries);
        compute(p, x, TERM_MATMULS, x->linear[i][ROW]);
        clock_exchange(&p->clock, TERM_TENSOR, x->cut, x->sums);
    }
}

static void block_backward(StagePlay* p, const LayerTimes* x) {
    for (int i = MLP; i >= ATTENTION; i--) {
        int turns = i == ATTENTION;
        ClockMessage sums = {0};
        gather_and_compute(p, x, x->linear[i][ROW]);
        compute(p, x, TERM_MATMULS, x->linear[i][ROW]);
        if (turns) clock_exchange(&p->clock, TERM_SEQUENCE, x->turn, x->queries);
        if (turns) compute(p, x, TERM_ATTENTION, 2 * x->attention);
        if (turns) clock_exchange(&p->clock, TERM_SEQUENCE, x->bucket.data, x->shared);
        if (turns) clock_exchange(&p->clock, TERM_SEQUENCE, x->turn, x->all_heads);
        compute(p, x, TERM_MATMULS, x->linear[i][COLUMN]);
        if (x->sums > 0) sums = clock_begin(&p->clock, TERM_TENSOR, x->cut, x->sums, 0);
        if (!p->step->tensor_overlap) clock_wait(&p->clock, TERM_TENSOR, sums);
        compute(p, x, TERM_MATMULS, x->linear[i][COLUMN]);
        clock_wait(&p->clock, TERM_TENSOR, sums);
    }
}

// ---- passes of a round

static void begin_round(StagePlay* p, int round) {
    int work = p->step->works > 1 ? round : 0;
    p->times = p->stage->layer + work * p->stage->kinds;
    p->ends = p->stage->ends + work;
}

static void forward(StagePlay* p) {
    int L = p->stage->layers;
    const EndTimes* e = p->ends;
    use_layer(p, -1, 1);
    use_layer(p, 0, 1);
    if (p->stage->is_first) clock_exchange(&p->clock, TERM_TENSOR, e->cut, e->sums);
    for (int l = 0; l < L; l++) {
        clock_compute(&p->clock, TERM_MICRO_BATCH, layer(p, l)->read);
        block_forward(p, layer(p, l));
        use_layer(p, l + 1, 1);
    }
    if (!p->stage->is_last) return;
    clock_exchange(&p->clock, TERM_TENSOR, e->cut, e->sums);
    clock_compute(&p->clock, TERM_MATMULS, e->head / 3);
    clock_exchange(&p->clock, TERM_TENSOR, e->cut, e->numbers);
    clock_compute(&p->clock, TERM_MATMULS, 2 * e->head / 3);
    clock_exchange(&p->clock, TERM_TENSOR, e->cut, e->sums);
}

static void backward(StagePlay* p) {
    int L = p->stage->layers;
    close_grads(p, L);
    for (int l = L - 1; l >= 0; l--) {
        const LayerTimes* x = layer(p, l);
        use_layer(p, l, -1);
        p->is_again = p->stage->rows[l].recompute == RECOMPUTE_BLOCK;
        if (p->is_again) block_forward(p, x);
        p->is_again = 0;
        block_backward(p, x);
        close_grads(p, l);
    }
    if (p->stage->is_first) clock_exchange(&p->clock, TERM_TENSOR, p->ends->cut, p->ends->sums);
    if (p->stage->is_first) clock_compute(&p->clock, TERM_MICRO_BATCH, p->ends->end);
    close_grads(p, -1);
}

// ---- a step of a stage

static void place_layers(StagePlay* p) {
    int weights = 0, grads = 0;
    for (int l = 0; l < p->stage->layers; l++) {
        p->weights_place[l] = (char)weights, p->grads_place[l] = (char)grads;
        weights ^= zero_of(p, l) > 2, grads ^= zero_of(p, l) > 1;
    }
    p->layer_in[0] = p->layer_in[1] = -1;
}

static int begin_stage(StagePlay* p, const PlayedStep* step, int s, Arena* arena) {
    const PlayedStage* stage = &step->stage[s];
    int L = stage->layers;
    *p = (StagePlay){.step = step, .stage = stage};
    p->clock = (RankClock){
        .slow_computing = step->slow, .slow_exchange = step->slow, .overlap = step->overlap, .spent = p->spent};
    p->arriving = TAKE(arena, ClockMessage, L + 2), p->leaving = TAKE(arena, ClockMessage, L + 2);
    p->in_flight = TAKE(arena, int, L + 2);
    p->weights_place = TAKE(arena, char, L), p->grads_place = TAKE(arena, char, L);
    if (arena->missing) return -1;
    memset(p->arriving, 0, sizeof(ClockMessage) * ((size_t)L + 2));
    memset(p->leaving, 0, sizeof(ClockMessage) * ((size_t)L + 2));
    place_layers(p);
    begin_round(p, 0);
    for (int l = -1; l <= L; l++)
        if (zero_of(p, l) < 3) begin_gather(p, l);
    return 0;
}

// Begins to reduce the gradients that no pass has, except bucket 0's.
static void reduce_rest(StagePlay* p) {
    for (int l = p->stage->layers; l >= 0 && !p->is_last_row; l--)
        if (zero_of(p, l) < 2) begin_reduce(p, l);
}

static void end_stage(StagePlay* p) {
    if (!p->is_last_row) begin_reduce(p, -1);
    end_reduces(p, ANY);
    clock_compute(&p->clock, TERM_STEP, p->stage->step.update);
}

// An embedding that is also the classifier lies on the first and the last stage: these add up its gradients.
static void sum_tied(StagePlay* first, StagePlay* last) {
    const StepTimes* s = &first->stage->step;
    double ready = MAX(clock_ready(&first->clock, s->tied_link), clock_ready(&last->clock, s->tied_link));
    if (s->tied <= 0) return;
    clock_wait(&first->clock, TERM_STEP, clock_begin(&first->clock, TERM_STEP, s->tied_link, s->tied, ready));
    clock_wait(&last->clock, TERM_STEP, clock_begin(&last->clock, TERM_STEP, s->tied_link, s->tied, ready));
}

// ---- stages

static void settle(StagePlay* p, const SlotMessages* at, int backward) {
    clock_wait(&p->clock, TERM_STAGES, at->receiving[backward]);
    for (int d = 0; d < 2; d++) clock_wait(&p->clock, TERM_STAGES, at->sending[d]);
}

// Returns the time at which it was ready to leave.
static double send_message(StagePlay* p, SlotMessages* at, int backward) {
    const EndTimes* e = p->ends;
    int side = !backward;
    if (backward) clock_compute(&p->clock, TERM_MICRO_BATCH, e->end);
    double ready = clock_ready(&p->clock, e->border[side]);
    at->sending[backward] = clock_begin(&p->clock, TERM_STAGES, e->border[side], e->message[side], 0);
    return ready;
}

static void receive_message(StagePlay* p, SlotMessages* at, int side, double sent) {
    const EndTimes* e = p->ends;
    clock_wait(&p->clock, TERM_STAGES, at->sending[0]);
    at->receiving[side] = clock_begin(&p->clock, TERM_STAGES, e->border[side], e->message[side], sent);
}

// sent: the time at which the message of the task before was ready to leave; this task may receive it.
static double play_task(StagePlay* p, const Task* task, double sent) {
    SlotMessages* at = &p->slot[task->slot];
    begin_round(p, task->round);
    p->is_last_row = p->step->reduces_inside && task->round == p->step->rounds - 1;
    if (task->kind == TASK_SEND) return send_message(p, at, task->backward);
    if (task->kind == TASK_RECEIVE) receive_message(p, at, task->backward, sent);
    else settle(p, at, task->backward);
    if (task->kind == TASK_FORWARD) forward(p);
    if (task->kind == TASK_BACKWARD) backward(p);
    return 0;
}

// The ms of a round from which the engine makes its schedule: weights and gradients do not count.
static double passes_ms(StagePlay* p, int round) {
    double ms = 0;
    memset(p->spent, 0, sizeof p->spent);
    begin_round(p, round);
    forward(p);
    backward(p);
    for (int i = 0; i < N_LAYOUT_TERMS; i++)
        ms += i == TERM_ROUNDS || i == TERM_STEP || i == TERM_STAGES ? 0 : p->spent[i];
    return ms;
}

// The share of a stage's layers that are computed again.
static double again_of(const PlayedStage* stage) {
    int again = 0;
    for (int l = 0; l < stage->layers; l++) again += stage->rows[l].recompute == RECOMPUTE_BLOCK;
    return (double)again / stage->layers;
}

// Schedules all rounds. A single stage needs no times, because its rounds come one after another.
static int schedule_rounds(Schedule* schedule, const PlayedStep* step, Arena* arena) {
    Pipeline pipeline;
    double ms = 0;
    if (pipeline_take(&pipeline, step->stages, step->rounds, 1, arena, NULL)) return -1;
    for (int s = 0; s < step->stages && step->stages > 1; s++) {
        ArenaMark mark = arena_mark(arena);
        StagePlay p;
        if (begin_stage(&p, step, s, arena)) return -1;
        for (int r = 0; r < step->rounds; r++) {
            if (r == 0 || step->works > 1) ms = passes_ms(&p, r);
            pipeline_set(&pipeline, s, r, ms, again_of(p.stage));
            pipeline.message[r] = MAX(pipeline.message[r], MAX(p.ends->message[0], p.ends->message[1]));
        }
        arena_reset(arena, mark);
    }
    return schedule_tasks(schedule, &pipeline, arena, NULL);
}

static int play_tasks(StagePlay* p, const PlayedStep* step, Arena* arena) {
    Schedule schedule;
    int P = step->stages;
    double sent = 0;
    SlotMessages* slots = TAKE(arena, SlotMessages, P * P);
    if (!slots || schedule_rounds(&schedule, step, arena)) return -1;
    memset(slots, 0, sizeof *slots * (size_t)(P * P));
    for (int s = 0; s < P; s++) p[s].slot = slots + s * P;
    for (const int* s = schedule.order; s < schedule.order + schedule.n; s++)
        sent = play_task(&p[*s], &schedule.stages[*s].tasks[p[*s].next++], sent);
    for (int i = 0; i < P * P; i++) settle(&p[i / P], &slots[i], 0);
    return 0;
}

double layout_play(double terms[N_LAYOUT_TERMS], const PlayedStep* step, Arena* arena) {
    ArenaMark mark = arena_mark(arena);
    int P = step->stages, longest = 0, failed = 0;
    StagePlay* p = TAKE(arena, StagePlay, P);
    for (int s = 0; s < P && p && !failed; s++) failed = begin_stage(&p[s], step, s, arena);
    if (!p || failed || play_tasks(p, step, arena)) return INFINITY;
    for (int s = 0; s < P; s++) reduce_rest(&p[s]);
    if (P > 1) sum_tied(&p[0], &p[P - 1]);
    for (int s = 0; s < P; s++) end_stage(&p[s]);
    for (int s = 1; s < P; s++)
        if (p[s].clock.now > p[longest].clock.now) longest = s;
    memcpy(terms, p[longest].spent, sizeof p[longest].spent);
    double ms = p[longest].clock.now;
    arena_reset(arena, mark);
    return ms;
}
