// test_law.c - the first law: any plan on any number of ranks gives the loss and the gradients of one rank.
//
//   mpirun -n N build/release/test/test_law [train's options, e.g. --zero 2 --tp 3 --pp 2] [PROGRAM]
//
// The trainer itself is in this program. Models of any architecture are drawn, and for each some cases: ragged
// documents and a plan, any valid one or in every other case plan_flex's on a random machine. The reference is a
// trainer that is alone, with the whole model, the same documents as whole rows and the ordinary kernels. With --tp
// what a plan calls a rank is a tensor-parallel group, and gradients are put together of its ranks' parts; with --pp
// every stage of the pipeline follows the plan. LAW_CASES=N
// runs N cases instead of a few, LAW_SEED=N starts elsewhere, LAW_UNLIKE=1 gives ranks unlike memory in all cases and
// not in a third. A case that fails prints how to have it again.
//
// Tolerance: 1e-5 of the norm of a gradient. Sums of fp32 in another order differ by some 2^-24 of the sum of
// magnitudes (6e-8), more where terms cancel; a wrong share, mask or merge changes gradients by 1e-2 and more.
#include <float.h>
#include <limits.h>

#include "plan/published/published.h"
#include "plan/step/remap.h"
#include "test/checks.h"
#include "test/late_comm.h"
#include "test/trainer.h"

enum { CASES_OF_A_MODEL = 3 };

static Trainer trainer, alone;
static Run* const run = &trainer.run;
static RankIdentity identity;
static int n_options;  // of the command line
static char** options;
static int ranks, group, stages;  // as plans count them: tensor-parallel groups of a stage; ranks of each

// What the trainer that is alone has found for the cases of a model.
static struct {
    Shape shape;
    double losses[CASES_OF_A_MODEL];
    float* grads;  // (CASES_OF_A_MODEL, elems), each in the order of the whole block
    size_t elems;
} reference;

// ---- a case

// Ragged pieces of any documents, together at most BATCH tokens.
static void draw_pieces(Run* r, uint64_t seed) {
    Batch* b = &r->batch;
    int left = 1 + (int)((BATCH - 1) * random_uniform(seed, 0)),
        most = 1 + (int)((CONTEXT - 1) * random_uniform(seed, 1));
    b->n_pieces = 0;
    for (uint64_t i = 2; left > 0; i += 3) {
        Piece* p = &b->pieces[b->n_pieces++];
        p->doc = (int64_t)((double)r->data.docs->n * random_uniform(seed, i));
        int64_t length = docs_length(r->data.docs, p->doc);
        p->first = (int64_t)((double)length * random_uniform(seed, i + 1));
        p->length = (int)MIN(MIN(length - p->first, (int64_t)left), 1 + (int64_t)(most * random_uniform(seed, i + 2)));
        p->n_targets = p->n_labels = p->length - (p->first + p->length == length);
        p->weight = p->n_labels, p->squares = (double)p->length * p->length;
        left -= p->length;
    }
}

// Lengths and counts, with the program's own plan; cases put theirs in its place.
static void count_pieces(Run* r, int64_t step) {
    char why[ERR_BYTES];
    if (batch_plan(&r->batch, r, step, why)) die("%s", why);
}

// Everything on rank 0, a row for each document.
static void plan_alone(Run* r) {
    Batch* b = &r->batch;
    for (int i = 0; i < b->n_pieces; i++) {
        MicroBatch mb = {0, 1, 1, i, 1, 0};
        b->planned->made.plan.docs[i] = i;
        b->planned->made.plan.micro_batches[i] = mb;
    }
    b->planned->made.plan.n_docs = b->planned->made.plan.n_micro_batches = b->n_pieces;
    b->planned->made.plan.ranks = r->clock->limits.ranks;
    if (plan_set_rounds(&b->planned->made.plan, &b->arena, NULL)) die("no memory");
}

// 10^u with u uniform in [least, most)
static double scale(uint64_t seed, uint64_t index, double least, double most) {
    return pow(10, least + (most - least) * random_uniform(seed, index));
}

static LinkTable random_link(uint64_t seed, uint64_t index) {
    double latency = scale(seed, index, -4, -1);
    LinkTable link = {2, {64, 1e6}, {latency, latency + scale(seed, index + 1, -3, 0)}};
    return link;
}

static int unlike_ranks;  // cases whose ranks hold unlike much

// Any machine: computing, links and micro-batches that are cheap or dear beside each other, and rows that hold little
// or much.
static const Setting* random_setting(uint64_t seed) {
    static GroupCost groups[17];  // point into the setting's cost
    static Setting s;
    static int capacities[17];
    Setting fresh = {.limits = run->clock->limits, .groups = groups, .context = CONTEXT};
    s = fresh;
    int least = ranks == 1 ? run->clock->limits.capacity : 100;  // two ranks hold any document
    s.limits.capacity = least + (int)((run->clock->limits.capacity - least) * pow(random_uniform(seed, 1), 3));
    for (int r = 0; r < ranks && s.limits.capacities; r++) {
        int more = rank_capacity(&run->clock->limits, r) - s.limits.capacity;
        capacities[r] = s.limits.capacity + (int)(more * random_uniform(seed, 30 + (uint64_t)r));
    }
    if (s.limits.capacities) s.limits.capacities = capacities, unlike_ranks++;
    s.kind = (CpChoice)(3 * random_uniform(seed, 2));
    s.rounds = run->model.ranks->zero.stage > 1 || stages > 1;
    s.cost.quadratic = scale(seed, 3, -5, -2);
    s.cost.per_token = scale(seed, 4, -4, -2);
    s.cost.micro_batch = scale(seed, 5, -4, -1);
    s.cost.link_scale = 1;
    s.cost.link[LINK_INSIDE] = random_link(seed, 6);
    s.cost.link[LINK_ACROSS] = random_link(seed, 8);
    s.cost.layers = run->model.whole.L, s.cost.channels = run->model.shape.C, s.cost.elem_bytes = sizeof(float);
    s.cost.kv_channels = run->model.shape.NKV * run->model.shape.HS;
    // Weights and gradients that decide in which order passes run: all of it, or next to nothing.
    s.weights = (WeightTimes){
        .zero = s.rounds ? 2 + (int)(seed % 2) : 1, .layers = run->model.whole.L, .hides = 1, .inside = 1};
    for (int k = 0; k < N_WEIGHTS; k++)
        s.weights.gather[k] = scale(seed, 40 + (uint64_t)k, -3, 1),
        s.weights.reduce[k] = scale(seed, 50 + (uint64_t)k, -3, 1);
    cost_groups(s.groups, &s.cost, &s.limits, s.kind);
    int holds = 0;
    for (int d = 1; d <= ranks; d++) holds |= s.groups[d].canonical && group_holds(&s.groups[d], CONTEXT);
    if (!holds) {  // too few heads for ulysses alone
        s.kind = CP_CHOICE_AUTO;
        cost_groups(s.groups, &s.cost, &s.limits, s.kind);
    }
    return &s;
}

static int flex_plans, unlike_cp_sizes;  // plan_flex's plans, and those of them with groups of unlike cp sizes
static int remapped_plans, routed_messages;
enum { N_CHOICES = REMAP_AUTO + 1 };

static const Planner* planner;  // of cases that are for one; NULL: flex in every other case, any plan in the others
static int planned, barriers;   // plans of it; those with barriers

// 0, or -1 where it says why not.
static int plan_by_planner(Batch* b, const Setting* s, uint64_t seed, char* why) {
    static Arena settled;
    arena_reset(&settled, (ArenaMark){0});
    void* state = planner->open(s, b->lengths, b->n_pieces, &settled, why);
    int no_plan = !state || planner->plan(state, &b->planned->made.plan, 1, b->lengths, b->n_pieces, &b->arena, why);
    if (no_plan) printf("    seed %" PRIu64 ", %s has no plan: %s\n", seed, planner->name, why);
    planned += !no_plan;
    barriers += !no_plan && b->planned->made.plan.has_barriers;
    return no_plan ? -1 : 0;
}

// 0, or -1 where the planner has no plan.
static int plan_case(Batch* b, uint64_t seed) {
    char why[ERR_BYTES];
    const Setting* s = random_setting(seed);
    int remapped, is_flex = !planner && seed & 1, is_random = !planner && !is_flex;
    if (planner && plan_by_planner(b, s, seed, why)) return -1;
    if ((is_flex && plan_flex(&b->planned->made.plan, &b->planned->made.prediction, 1, b->lengths, b->n_pieces, s,
                              &b->arena, why)) ||
        (is_random &&
         plan_random(&b->planned->made.plan, 1, b->lengths, b->n_pieces, &run->clock->limits, seed, &b->arena, why)))
        die("seed %" PRIu64 ": %s", seed, why);
    uint64_t joins = seed;
    if (b->planned->made.plan.n_rounds == 0 &&
        (seed & 2 ? plan_join_rounds(&b->planned->made.plan, b->lengths, &s->limits, &joins, &b->arena, NULL)
                  : plan_set_rounds(&b->planned->made.plan, &b->arena, NULL)))
        die("no memory");
    Setting wide = *s;
    if (is_random) wide.limits = run->clock->limits;
    if (plan_remap(&b->planned->made.plan, &remapped, b->lengths, &wide, (RemapChoice)(seed / 4 % N_CHOICES), &b->arena,
                   why))
        die("seed %" PRIu64 ": %s", seed, why);
    remapped_plans += remapped > 0;
    int wrong = plan_check(&b->planned->made.plan, b->lengths, b->n_pieces,
                           is_random ? &run->clock->limits : &s->limits, &b->arena, why);
    if (wrong) printf("    seed %" PRIu64 ": %s\n", seed, why);
    CHECK(!wrong);
    int unlike = 0;
    for (int i = 1; i < b->planned->made.plan.n_micro_batches; i++)
        unlike |= b->planned->made.plan.micro_batches[i].cp_size != b->planned->made.plan.micro_batches[0].cp_size;
    flex_plans += is_flex;
    unlike_cp_sizes += is_flex && unlike;
    return 0;
}

static void list_tasks(Run* r) {
    char why[ERR_BYTES];
    r->batch.training = 1;
    if (batch_list(&r->batch, r, why)) die("%s", why);
}

// Forward and backward under the plan in the batch; the loss of all ranks.
static double step_loss(Run* r) {
    list_tasks(r);
    run_micro_batches(r, r->data.train, 1);
    zero_reduce(&r->model);
    return loss_sum(r) / (double)MAX(r->batch.n_targets, 1);
}

// Of all gradients, whoever owns them.
static double gradient_norm(Run* r) {
    Model* m = &r->model;
    double norm2;
    m->k->clear(m->grad_norm2, sizeof norm2, m->s);
    zero_sum_of_squares(m);
    m->world->table->all_reduce(m->world, m->grad_norm2, 1, DT_F64, m->s);
    m->k->download(&norm2, m->grad_norm2, sizeof norm2, m->s);
    return sqrt(norm2);
}

// A whole gradient, put together of its parts in a tensor-parallel group, from the stage that has it. On all ranks.
static void fetch_gradient(Run* r, const ParamTensor* tensor, float* value) {
    Model* m = &r->model;
    ParamTensor own = pipeline_part(m, tensor);
    float* part = m->tp ? r->books->part : value;
    if (own.elems) zero_fetch_grads(m, &own, part);
    if (own.elems) tp_join(m, &own, value, part, r->books->others);
    pipeline_share(m, value, tensor->elems * sizeof *value, pipeline_stage_of(m, tensor));
}

// The largest difference of a gradient to the reference's of this case, relative to its norm. One that is nothing to
// all of them in fp32 is rounding, as that of queries is where no document has a second token: relative to all then.
static double compare_gradients(int i) {
    double worst = 0, all = norm_of(reference.grads + (size_t)i * reference.elems, reference.elems);
    float* difference = run->books->staging;
    for (int t = 0; t < shape_tensors(&reference.shape); t++) {
        ParamTensor tensor = shape_tensor(&reference.shape, t);
        const float* expected = reference.grads + (size_t)i * reference.elems + tensor.offset;
        fetch_gradient(run, &tensor, difference);
        double norm = norm_of(expected, tensor.elems);
        for (size_t j = 0; j < tensor.elems; j++) difference[j] -= expected[j];
        double error = norm_of(difference, tensor.elems);
        if (norm < FLT_EPSILON / 2 * all) norm = all;
        worst = isfinite(error) ? MAX(worst, norm > 0 ? error / norm : error > 0) : INFINITY;
    }
    zero_clear_grads(&run->model);
    return worst;
}

#include "test/law_bytes.h"
#include "run/setup/setup.h"
#include "run/show/show.h"

static double sent(CommPurpose purpose) {
    Comm sum = run_sent(run);
    return (double)(sum.sent[purpose][0] + sum.sent[purpose][1]);
}

// Gradients that ranks of a tensor-parallel group have sent each other: of what several of them hold.
static double sent_copies(void) {
    const Comm* comms[2 + 2 * MOST_LAYER_GROUPS] = {run->model.tp, run->model.ranks->kv};
    double bytes = 0;
    for (int i = 0; i < run->model.ranks->n_groups; i++)
        comms[2 + 2 * i] = run->model.ranks->groups[i].cut, comms[3 + 2 * i] = run->model.ranks->groups[i].kv;
    for (int i = 0; i < COUNT(comms); i++)
        if (comms[i]) bytes += (double)(comms[i]->sent[COMM_GRADIENTS][0] + comms[i]->sent[COMM_GRADIENTS][1]);
    return bytes;
}

static Bytes sent_bytes(void) {
    return (Bytes){sent(COMM_ULYSSES), sent(COMM_REMAP), sent(COMM_RING),    sent(COMM_ROUTE),
                   sent(COMM_TENSOR),  sent_copies(),    sent(COMM_PIPELINE)};
}

// ---- the law

static int learnt;  // cases that have a loss

// Case i of the open model.
static void one_case(uint64_t seed, int i) {
    int failures = test_failures_in_claim;
    draw_pieces(run, seed);
    count_pieces(run, 1);
    if (plan_case(&run->batch, seed)) return;
    run->model.comm->route_least = seed / 16 % 2;
    Bytes before = sent_bytes();
    double loss = step_loss(run);
    Bytes now = sent_bytes(), expected = expected_bytes();
    CHECK(now.heads - before.heads == expected.heads);
    CHECK(now.remap - before.remap == expected.remap);
    CHECK(now.ring - before.ring == expected.ring);
    CHECK(now.route - before.route == expected.route);
    CHECK(now.tensor - before.tensor == expected.tensor);
    CHECK(now.copies - before.copies == expected.copies);
    CHECK(now.pipeline - before.pipeline == expected.pipeline);
    CHECK(sends_were_kept());
    learnt += loss > 0;
    CHECK_CLOSE(loss, reference.losses[i], 1e-5 * fabs(reference.losses[i]));
    double norm = norm_of(reference.grads + (size_t)i * reference.elems, reference.elems);
    CHECK_CLOSE(gradient_norm(run), norm, 1e-5 * norm);
    CHECK_CLOSE(compare_gradients(i), 0, 1e-5);
    if (test_failures_in_claim == failures) return;
    printf("    LAW_SEED=%" PRIu64 " LAW_CASES=%d, rank %d; the model:", seed - (uint64_t)i, i + 1, rank);
    for (int a = 1; a < trainer.arguments.n; a++) printf(" %s", trainer.arguments.text[a]);
    printf("\n");
}

static void take_reference(const Shape* shape) {
    reference.shape = *shape;
    reference.elems = shape_param_elems(shape);
    reference.grads = (float*)calloc(CASES_OF_A_MODEL * reference.elems, sizeof(float));
    if (!reference.grads) die("no memory for a reference");
}

// On rank 0: losses and gradients of n cases, by a trainer that is alone.
static void find_reference(uint64_t seed, int n) {
    static const RankIdentity single = {.size = 1, .source = "alone"};
    Run* r = &alone.run;
    alone.arguments = trainer.arguments;
    trainer_open(&alone, &single);
    take_reference(&r->model.shape);
    for (int i = 0; i < n; i++) {
        float* grads = reference.grads + (size_t)i * reference.elems;
        draw_pieces(r, seed + (uint64_t)i);
        count_pieces(r, 1);
        plan_alone(r);
        reference.losses[i] = step_loss(r);
        for (int t = 0; t < shape_tensors(&reference.shape); t++) {
            ParamTensor tensor = shape_tensor(&reference.shape, t);
            fetch_gradient(r, &tensor, grads + tensor.offset);
        }
        zero_clear_grads(&r->model);
    }
    trainer_close(&alone);
}

static void close_model(void) {
    if (!reference.grads) return;
    trainer_close(&trainer);
    free(reference.grads);
    reference.grads = NULL;
}

// The model of this seed on all ranks, with the reference of n cases.
static void open_model(uint64_t seed, int n) {
    close_model();
    Shape shape;
    draw_arguments(&trainer.arguments, seed, ranks, group, 1, n_options, options);
    if (rank == 0) find_reference(seed, n), shape = reference.shape;
    ranks_tell(&shape, sizeof shape);
    if (rank > 0) take_reference(&shape);
    ranks_tell(reference.losses, (size_t)n * sizeof *reference.losses);
    ranks_tell(reference.grads, (size_t)n * reference.elems * sizeof *reference.grads);
    trainer_open(&trainer, &identity);
    CHECK((size_t)run->batch.pieces % sizeof(int64_t) == 0);  // also of an odd --batch-tokens
    if (run->model.k->on_host) watch_sends(run->model.ranks->pipe.comm);
}

static int sum_of_all(int x) {
    int sums[2] = {x, 0};
    ranks_add_up(sums);
    return sums[0];
}

static void any_plan_gives_the_loss_and_gradients_of_one_rank(void) {
    int cases = getenv("LAW_CASES") ? atoi(getenv("LAW_CASES")) : 30;
    uint64_t first = getenv("LAW_SEED") ? (uint64_t)atoi(getenv("LAW_SEED")) : 1000 * (uint64_t)size;
    for (int i = 0; i < cases && test_failures_in_claim == 0; i++) {
        if (i % CASES_OF_A_MODEL == 0) open_model(first + (uint64_t)i, MIN(cases - i, CASES_OF_A_MODEL));
        one_case(first + (uint64_t)i, i % CASES_OF_A_MODEL);
        test_failures_in_claim = sum_of_all(test_failures_in_claim);
    }
    // Were these never seen here, the claim would say less than it seems to.
    CHECK(learnt >= cases / 2);
    if (flex_plans >= 10 && ranks > 3) CHECK(unlike_cp_sizes >= flex_plans / 10);
    if (cases >= 20 && size > 1) CHECK(several > 0);
    if (cases >= 30 && ranks > 1) CHECK(unlike_ranks > 0);
    if (cases >= 30 && ranks > 2) CHECK(remapped_plans > 0);
    if (cases >= 30 && ranks > 3) CHECK(routed_messages > 0 || rank > 0);
}

// Barriers, rounds of their own and all: what --plan NAME trains.
static void every_planner_gives_the_loss_and_gradients_of_one_rank(void) {
    enum { MODELS = 2 };
    int cases = getenv("LAW_CASES") ? MIN(atoi(getenv("LAW_CASES")), CASES_OF_A_MODEL) : CASES_OF_A_MODEL;
    const uint64_t first = 5000 * (uint64_t)size;
    for (uint64_t m = 0; m < MODELS && test_failures_in_claim == 0; m++) {
        open_model(first + CASES_OF_A_MODEL * m, cases);
        for (int i = 0; i < n_planners * cases && ranks > 1 && test_failures_in_claim == 0; i++) {
            planner = planners[i / cases];
            one_case(first + CASES_OF_A_MODEL * m + (uint64_t)(i % cases), i % cases);
            test_failures_in_claim = sum_of_all(test_failures_in_claim);
            if (test_failures_in_claim && rank == 0) printf("    it was %s\n", planner->name);
        }
    }
    planner = NULL;
    if (ranks == 1) return;
    CHECK(planned >= n_planners * cases * MODELS * 3 / 4);
    CHECK(barriers > 0);
}

// ---- what moves, and what is held

// By the options alone: the least N of the ranks that are one data rank with this one.
static int asked_capacity(void) {
    const Config* c = &run->config;
    int least = INT_MAX, mine = run->model.comm->rank;
    for (int r = 0; r < size; r++)
        if (r / group % ranks == mine) least = MIN(least, capacity_of_rank(c->rank_capacity, c->capacity, r, NULL));
    return least;
}

CLAIM(each_rank_takes_memory_for_what_it_holds) {
    const MemoryPlan* table = &trainer.memory;
    int N = asked_capacity();
    CHECK(run_capacity(run) == N && run->settled.capacity == run->clock->limits.capacity);
    for (int i = 0; i < 2; i++) {
        ModelNeeds needs = run_model_needs(run, N * (1 + i));
        MemoryPlan expected = {.on_host = run->model.k->on_host};
        model_plan(&expected, run->model.k, &needs);
        size_t bytes = expected.entries[memory_find(&expected, "activations")].bytes;
        CHECK((bytes == table->entries[memory_find(table, "activations")].bytes) == (i == 0));
    }
}

static double sent_otherwise(void) { return sent(COMM_OTHER) + sent(COMM_STATE) + sent(COMM_HOST); }

// Bytes of gradients that have left this rank, or are about to, when its micro-batches are through; and all of them; a
// hash of every gradient.
static void reduce_gradients(int overlap, double* inside, double* all, uint64_t* hash) {
    Model* m = &run->model;
    double before = sent(COMM_GRADIENTS);
    m->comm->overlap = overlap;
    if (m->tp) m->tp->overlap = overlap;
    list_tasks(run);
    run_micro_batches(run, run->data.train, 1);
    *inside = sent(COMM_GRADIENTS) - before;
    zero_reduce(m);
    *all = sent(COMM_GRADIENTS) - before;
    *hash = 0;
    for (int t = 0; t < shape_tensors(&m->shape); t++) {
        ParamTensor tensor = shape_tensor(&m->shape, t);
        zero_fetch_grads(m, &tensor, run->books->staging);
        *hash = hash_bytes(run->books->staging, tensor.elems * sizeof(float), *hash);
    }
    zero_clear_grads(m);
}

// From the plan alone: the last pass of this rank has nothing shared, or all ranks are in the last round of all.
static int may_reduce_inside(void) {
    const Plan* plan = &run->batch.planned->made.plan;
    int last[64], shared = 0, all = 1, r = run->model.comm->rank;
    for (int i = 0; i < ranks; i++) last[i] = -1;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int j = mb->first_rank; j < mb->first_rank + mb->cp_size; j++) {
            if (j == r && mb->round != last[j]) shared = 0;
            if (j == r) shared |= mb->cp_size > 1;
            last[j] = mb->round;
        }
    }
    for (int i = 0; i < ranks; i++) all &= last[i] == plan->n_rounds - 1;
    return last[r] >= 0 && ranks > 1 && group == 1 && stages == 1 && run->model.ranks->zero.stage == 1 &&
           (!shared || all);
}

// Under random plans: with Comm.overlap whole gradients are reduced inside the last row wherever its plan allows,
// without it after; the group's exchanges go by parts or at once. Bits and bytes are the same.
CLAIM(overlap_changes_no_bit_and_no_byte) {
    int plans = getenv("LAW_CASES") ? atoi(getenv("LAW_CASES")) : 24, overlap = run->model.comm->overlap;
    int seen = 0;  // how often any rank has reduced inside its last row
    int tp_overlap = run->model.tp ? run->model.tp->overlap : 0;
    Batch* b = &run->batch;
    char why[ERR_BYTES];
    for (uint64_t seed = 300; seed < 300 + (uint64_t)plans; seed++) {
        double inside[2], all[2], tensor[3];
        uint64_t hash[2];
        draw_pieces(run, seed);
        count_pieces(run, 1);
        if (plan_random(&b->planned->made.plan, 1, b->lengths, b->n_pieces, &run->clock->limits, seed, &b->arena, why))
            die("%s", why);
        tensor[0] = sent(COMM_TENSOR);
        for (int i = 0; i < 2; i++) {
            reduce_gradients(i, &inside[i], &all[i], &hash[i]);
            tensor[1 + i] = sent(COMM_TENSOR);
        }
        CHECK(hash[0] == hash[1]);
        CHECK(all[0] == all[1]);
        CHECK_CLOSE(tensor[2] - tensor[1], tensor[1] - tensor[0], 0);
        if (run->model.ranks->zero.stage == 1) CHECK(inside[0] == 0 && inside[1] == (may_reduce_inside() ? all[1] : 0));
        seen += inside[1] > 0;
    }
    run->model.comm->overlap = overlap;
    if (run->model.tp) run->model.tp->overlap = tp_overlap;
    seen = sum_of_all(seen);
    if (ranks > 1 && group == 1 && stages == 1 && run->model.ranks->zero.stage == 1) CHECK(seen > 0);
}

// Loss, and a hash of every gradient, of the plan in the batch, with activations that begin as these bytes.
static uint64_t step_after(int byte, double* loss) {
    Model* m = &run->model;
    uint64_t hash = 0;
    void* bytes = malloc(m->act_bytes);
    if (!bytes) die("no memory for activations");
    memset(bytes, byte, m->act_bytes);
    m->k->upload(m->acts, bytes, m->act_bytes, m->s);
    m->k->synchronize(m->s);
    free(bytes);
    ranks_meet();
    *loss = step_loss(run);
    for (int t = 0; t < shape_tensors(&m->shape); t++) {
        ParamTensor tensor = shape_tensor(&m->shape, t);
        zero_fetch_grads(m, &tensor, run->books->staging);
        hash = hash_bytes(run->books->staging, tensor.elems * sizeof(float), hash);
    }
    zero_clear_grads(m);
    return hash;
}

// Rows are shorter than the memory for them, which is of the row before: after NaN everywhere all bits are the same.
CLAIM(what_lies_in_activations_changes_no_bit) {
    enum { PLANS_OF_A_MODEL = 3 };
    uint64_t plans = getenv("LAW_CASES") ? (uint64_t)atoi(getenv("LAW_CASES")) : 12;
    char why[ERR_BYTES];
    for (uint64_t seed = 0; seed < plans; seed++) {
        Batch* b = &run->batch;
        double loss[2];
        if (seed % PLANS_OF_A_MODEL == 0) open_model(800 + seed, 0);
        draw_pieces(run, seed);
        count_pieces(run, 1);
        if (plan_random(&b->planned->made.plan, 1, b->lengths, b->n_pieces, &run->clock->limits, seed, &b->arena, why))
            die("%s", why);
        uint64_t hash = step_after(0, &loss[0]);
        CHECK(step_after(0xff, &loss[1]) == hash && isfinite(loss[0]) && loss[0] == loss[1]);
    }
}

// A gather in a tensor-parallel group comes in two parts, however many ranks there are: the last rank comes half a
// second late, and meanwhile those of the other half of the group can work on their own rows. Then all rows are where
// they belong, also own ones that lay elsewhere.
CLAIM(half_of_a_gather_is_there_while_the_other_half_is_late) {
    Model* m = &run->model;
    if (!m->tp) SKIP("no tensor-parallel group");
    int R = tp_size(m), t = tp_rank(m), C = m->shape.C, overlap = m->tp->overlap, seen = 0, parts = 0;
    int half = t < R / 2 ? R / 2 : R - R / 2, first = t < R / 2 ? 0 : R / 2;
    float *all = run->books->staging, *values = all + 3 * R * C;
    Row row = {.N = 3 * R - 1, .n = 3};
    char *full = (char*)model_act(m, D_FULL, 0), *own = (char*)model_act(m, D_RESIDUAL, 0);
    for (int i = 0; i < 3 * C; i++) values[i] = (float)(t * 3 * C + i);
    m->k->upload(own, values, (size_t)(3 * C) * sizeof(float), m->s);
    m->k->synchronize(m->s);
    m->tp->overlap = 1;
    ranks_meet();
    double started = now_seconds();
    if (t == R - 1) ranks_sleep(0.5);
    TpGather g = tp_gather_begin(m, own, full, &row, ENDS);
    for (TpRows r; tp_gather_next(m, &g, &r); seen += r.n, parts++) {
        if (seen == 0) CHECK(r.first == 3 * first && (t >= R / 2 || now_seconds() - started < 0.4));
        CHECK(r.x == (seen == 0 && half == 1 ? own : full + (size_t)(r.first * C) * sizeof(float)));
    }
    CHECK(seen == row.N && parts == 2);
    m->k->download(all, full, (size_t)(3 * R * C) * sizeof(float), m->s);
    for (int i = 0; i < 3 * R * C; i++) CHECK(all[i] == (float)i);
    m->tp->overlap = overlap;
}

// Steps as in training, each under another plan: gradients and weights move by the formula, optimizer state not at all.
CLAIM(plans_that_change_every_step_never_move_optimizer_state) {
    enum { STEPS = 4 };
    Batch* b = &run->batch;
    Model* m = &run->model;
    char why[ERR_BYTES];
    double gradients = sent(COMM_GRADIENTS) - sent_copies(), weights = sent(COMM_PARAMETERS), state = sent_otherwise();
    for (int step = 1; step <= STEPS; step++) {
        draw_pieces(run, 70 + (uint64_t)step);
        count_pieces(run, step);
        if (plan_random(&b->planned->made.plan, step, b->lengths, b->n_pieces, &run->clock->limits, (uint64_t)step,
                        &b->arena, why))
            die("%s", why);
        list_tasks(run);
        run_micro_batches(run, run->data.train, 1);
        model_update(m, &run->config, 1e-3, step);
        zero_gather(m);
        double sums[2];
        m->k->download(sums, m->loss_sum, sizeof sums, m->s);
        CHECK(isfinite(sums[0]) && isfinite(sums[1]));
    }
    zero_settle(m);
    double all = (double)shape_param_elems(&m->shape) * 4 * (ranks - 1) / ranks;
    // The first and the last stage add up the gradients of wte where both have it.
    double tied = m->ranks->pipe.ends ? sum_bytes((int)shape_param(&m->shape, WTE, 0).elems, 2) : 0;
    // Whatever a transfer of optimizer state might be called: besides gradients, weights, attention and tensor
    // parallelism only the sums of losses and norms have moved, two doubles a step there and back.
    CHECK(sent_otherwise() - state == STEPS * 2.0 * (size - 1) * CEIL_DIV(2, size) * sizeof(double));
    if (m->ranks->zero.stage == 1) {
        CHECK(sent(COMM_GRADIENTS) - sent_copies() - gradients == STEPS * (all + tied));
        CHECK(sent(COMM_PARAMETERS) - weights == STEPS * all);
    } else CHECK(ranks == 1 || sent(COMM_GRADIENTS) > gradients);
}

// A model that has learnt that everything takes twice as long predicts twice the time, and the same terms before that.
CLAIM(terms_are_those_of_the_model_before_it_learnt) {
    double before[CALIBRATION_TERMS], makespan;
    Batch* b = &run->batch;
    WeightTimes weights = run->clock->setting.weights;
    run->clock->setting.weights.layers = 0;  // of a machine's file, from which nothing is learnt
    draw_pieces(run, 11);
    count_pieces(run, 1);
    CHECK(b->planned->made.predicted && b->planned->made.prediction.makespan > 0);
    memcpy(before, b->planned->made.terms, sizeof before);
    makespan = b->planned->made.prediction.makespan;
    for (int i = 0; i < CALIBRATION_TERMS; i++) run->cluster->timing.calibration.theta[i] = 2;
    run_set_cost(run);
    count_pieces(run, 1);
    // Factors of two are exact: any difference would be another plan.
    CHECK_CLOSE(b->planned->made.prediction.makespan, 2 * makespan, 1e-9 * makespan);
    for (int i = 0; i < CALIBRATION_TERMS; i++) CHECK_CLOSE(b->planned->made.terms[i], before[i], 1e-9 * makespan);
    calibration_start(&run->cluster->timing.calibration);
    run_set_cost(run);
    run->clock->setting.weights = weights;
}

int main(int n_arguments, char** arguments) {
    char node[16], why[ERR_BYTES];
    ranks_start(&n_arguments, &arguments);
    // Options come in pairs, then perhaps the program's path.
    n_options = n_arguments - 1 - (n_arguments % 2 == 0);
    options = arguments + 1;
    group = option_number(n_options, options, "--tp", 1);
    stages = option_number(n_options, options, "--pp", 1);
    ranks = size / group / stages;
    make_corpus();
    // Nodes of two or three tensor-parallel groups, so that rings cross from one to another.
    snprintf(node, sizeof node, "%d", (ranks > 5 ? 3 : 2) * group);
    setenv("RAGGED_NODE_SIZE", node, 0);
    run_find_ranks(run);
    if (ranks_identity(&run->cluster->identity, why)) die("%s", why);
    identity = run->cluster->identity;
    if (rank > 0) dup2(STDERR_FILENO, STDOUT_FILENO);  // which the trainer has silenced
    RUN_TOGETHER(any_plan_gives_the_loss_and_gradients_of_one_rank);
    RUN_TOGETHER(every_planner_gives_the_loss_and_gradients_of_one_rank);
    if (!reference.grads) open_model(1, 0);  // TEST_ONLY
    run_claims_together();
    remove_corpus();
    close_model();
    return ranks_done();
}
