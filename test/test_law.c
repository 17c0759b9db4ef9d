// test_law.c - the first law: any plan on any number of ranks gives the loss and the gradients of one rank.
//
//   mpirun -n N build/release/test/test_law [train's options, e.g. --zero 2] [PROGRAM]
//
// The trainer itself is in this program. Every case draws ragged documents and a plan: any valid one, or in every other
// case plan_flex's on a random machine. The reference is the same documents as whole rows on rank 0, the ordinary
// kernels of one rank. LAW_CASES=N runs N cases instead of a few, LAW_SEED=N starts elsewhere. A case that fails prints
// its seed.
//
// Tolerance: 1e-5 of the norm of a gradient. Sums of fp32 in another order differ by some 2^-24 of the sum of
// magnitudes (6e-8), more where terms cancel; a wrong share, mask or merge changes gradients by 1e-2 and more.
#define main train_main
#include "train_gpt.cu"
#undef main

#include <sys/stat.h>

#include "test/ranks.h"

enum { LAYERS = 2, CONTEXT = 192, BATCH = 1536 };

static Run run;
static char work[512];
static float* reference;  // gradients of the reference, in the order of the whole block
static double reference_loss;

// ---- the trainer, opened once

// Documents of 1 to about 2000 characters.
static void write_corpus(void) {
    char path[600];
    for (int d = 0; d < 60; d++) {
        snprintf(path, sizeof path, "%s/%02d.txt", work, d);
        FILE* file = fopen(path, "w");
        int n = (int)exp(7.5 * random_uniform(5, (uint64_t)d)) + 1;
        for (int i = 0; file && i < n; i++) fputc('a' + (int)(26 * random_uniform(6 + (uint64_t)d, (uint64_t)i)), file);
        if (!file || fclose(file)) die("cannot write %s", path);
    }
}

static void open_trainer(int n_options, char** options) {
    char* arguments[64] = {(char*)"train",
                           (char*)"--data",
                           work,
                           (char*)"--layers",
                           (char*)"2",
                           (char*)"--width",
                           (char*)"48",
                           (char*)"--heads",
                           (char*)"6",
                           (char*)"--context",
                           (char*)"192",
                           (char*)"--batch-tokens",
                           (char*)"1536",
                           (char*)"--device",
                           (char*)"cpu",
                           (char*)"--dtype",
                           (char*)"fp32",
                           (char*)"--threads",
                           (char*)"1",
                           (char*)"--sample-every",
                           (char*)"0",
                           (char*)"--machine",
                           (char*)"flexsp-7b"};
    int n = 0;
    while (arguments[n]) n++;
    for (int i = 0; i < n_options && n < 60; i++) arguments[n++] = options[i];
    run_find_ranks(&run);
    run_read_options(&run, n, arguments);
    run_open_data(&run);
    run_settle_model(&run);
    run_join_ranks(&run);
    prepare(&run);
}

// ---- a case

// Ragged pieces of any documents, together at most BATCH tokens.
static void draw_pieces(Batch* b, uint64_t seed) {
    int left = 1 + (int)((BATCH - 1) * random_uniform(seed, 0)),
        most = 1 + (int)((CONTEXT - 1) * random_uniform(seed, 1));
    b->n_pieces = 0;
    for (uint64_t i = 2; left > 0; i += 3) {
        Piece* p = &b->pieces[b->n_pieces++];
        p->doc = (int64_t)((double)docs_count(run.data.docs) * random_uniform(seed, i));
        int64_t length = docs_length(run.data.docs, p->doc);
        p->first = (int64_t)((double)length * random_uniform(seed, i + 1));
        p->length = (int)MIN(MIN(length - p->first, (int64_t)left), 1 + (int64_t)(most * random_uniform(seed, i + 2)));
        p->n_targets = p->length - (p->first + p->length == length);
        left -= p->length;
    }
}

// Lengths and counts, with the program's own plan; cases put theirs in its place.
static void count_pieces(Batch* b, int64_t step) {
    char why[ERR_BYTES];
    if (batch_plan(b, &run, step, why, sizeof why)) die("%s", why);
}

// Everything on rank 0, a row for each document.
static void plan_alone(Batch* b) {
    for (int i = 0; i < b->n_pieces; i++) {
        Item item = {0, 1, 1, i, 1, 0};
        b->plan.docs[i] = i;
        b->plan.items[i] = item;
    }
    b->plan.n_docs = b->plan.n_items = b->n_pieces;
    b->plan.ranks = run.limits.ranks;
    plan_set_rounds(&b->plan, (int*)b->plan_scratch);
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

// Any machine: computing, links and items that are cheap or dear beside each other, and rows that hold little or much.
static const Setting* random_setting(uint64_t seed) {
    static GroupCost groups[17];  // point into the setting's cost
    static Setting s;
    Setting fresh = {.limits = run.limits, .groups = groups, .context = CONTEXT};
    s = fresh;
    int least = size == 1 ? run.limits.capacity : 100;  // two ranks hold any document
    s.limits.capacity = least + (int)((run.limits.capacity - least) * pow(random_uniform(seed, 1), 3));
    s.kind = (KindChoice)(3 * random_uniform(seed, 2));
    s.cost.quadratic = scale(seed, 3, -5, -2);
    s.cost.linear = scale(seed, 4, -4, -2);
    s.cost.item = scale(seed, 5, -4, -1);
    s.cost.link_scale = 1;
    s.cost.link[LINK_INSIDE] = random_link(seed, 6);
    s.cost.link[LINK_ACROSS] = random_link(seed, 8);
    s.cost.layers = LAYERS, s.cost.channels = run.model.shape.C, s.cost.elem_bytes = sizeof(float);
    cost_groups(s.groups, &s.cost, &s.limits, s.kind);
    return &s;
}

static int flex_plans, unlike_degrees;  // plan_flex's plans, and those of them with groups of unlike degrees

static void plan_case(Batch* b, uint64_t seed) {
    char why[ERR_BYTES];
    const Setting* s = random_setting(seed);
    int is_flex = seed & 1;
    if (is_flex
            ? plan_flex(&b->plan, &b->forecast, 1, b->lengths, b->n_pieces, s, b->plan_scratch, why, sizeof why)
            : plan_random(&b->plan, 1, b->lengths, b->n_pieces, &run.limits, seed, b->plan_scratch, why, sizeof why))
        die("seed %" PRIu64 ": %s", seed, why);
    plan_set_rounds(&b->plan, (int*)b->plan_scratch);
    int wrong = plan_check(&b->plan, b->lengths, b->n_pieces, is_flex ? &s->limits : &run.limits, b->plan_scratch, why,
                           sizeof why);
    if (wrong) printf("    seed %" PRIu64 ": %s\n", seed, why);
    CHECK(!wrong);
    int unlike = 0;
    for (int i = 1; i < b->plan.n_items; i++) unlike |= b->plan.items[i].degree != b->plan.items[0].degree;
    flex_plans += is_flex;
    unlike_degrees += is_flex && unlike;
}

// Forward and backward under the plan in the batch; the loss of all ranks.
static double step_loss(void) {
    batch_list(&run.batch, &run);
    run_items(&run, run.data.train, 1);
    zero_reduce(&run.model);
    return loss_sum(&run) / (double)MAX(run.batch.n_targets, 1);
}

static double norm_of(const float* x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sqrt(sum);
}

// The largest difference of a gradient to the reference's, relative to its norm; keep: store it as reference.
static double compare_gradients(int keep) {
    double worst = 0;
    for (int i = 0; i < shape_tensors(&run.model.shape); i++) {
        ParamTensor tensor = shape_tensor(&run.model.shape, i);
        float* expected = reference + tensor.offset;
        zero_fetch_grads(&run.model, &tensor, keep ? expected : run.staging);
        if (keep) continue;
        double norm = norm_of(expected, tensor.elems);
        for (size_t j = 0; j < tensor.elems; j++) run.staging[j] -= expected[j];
        double error = norm_of(run.staging, tensor.elems);
        worst = isfinite(error) ? MAX(worst, norm > 0 ? error / norm : error > 0) : INFINITY;
    }
    zero_clear_grads(&run.model);
    return worst;
}

// Bytes that this rank should send in attention for a forward and a backward pass of the plan, from lengths alone: see
// kernels/group_attention.h. [0] heads, [1] ring.
static void expected_bytes(double bytes[2]) {
    const Batch* b = &run.batch;
    int NH = run.model.shape.NH, HS = run.model.shape.C / NH;
    bytes[0] = bytes[1] = 0;
    for (int i = 0; i < b->n_items; i++) {
        const Item* item = b->items[i].item;
        int tokens[16], low[16];
        if (!item) continue;
        Share share = item_share(&b->plan, item, b->lengths, rank, NULL);
        double C = NH * HS, heads = ((share.b + 1) * NH / share.inner - share.b * NH / share.inner) * HS;
        // three matrices there and one back, then one there and three back
        bytes[0] += LAYERS * 4.0 * 4 * (share.n * (C - heads) + (share.ring_n - share.n) * heads);
        if (share.outer == 1) continue;
        item_ring_tokens(&b->plan, item, b->lengths, tokens, low);
        for (int t = 0; t < share.outer; t++) {  // the block that is here after t turns is passed on, keys and values
            double block = 2.0 * tokens[(share.a - t + share.outer) % share.outer] * heads * 4;
            bytes[1] += LAYERS * block;                               // its gradients
            if (t < share.outer - 1) bytes[1] += LAYERS * 2 * block;  // itself, forward and backward
        }
    }
}

static double sent(CommPurpose purpose) {
    return (double)(run.model.comm->sent[purpose][0] + run.model.comm->sent[purpose][1]);
}

static void one_case(uint64_t seed) {
    Batch* b = &run.batch;
    draw_pieces(b, seed);
    count_pieces(b, 1);
    plan_alone(b);
    reference_loss = step_loss();
    compare_gradients(1);
    int failures = test_failures_in_claim;
    plan_case(b, seed);
    double before[2] = {sent(COMM_HEADS), sent(COMM_RING)}, bytes[2];
    double loss = step_loss();
    expected_bytes(bytes);
    CHECK(sent(COMM_HEADS) - before[0] == bytes[0] && sent(COMM_RING) - before[1] == bytes[1]);
    CHECK_CLOSE(loss, reference_loss, 1e-5 * fabs(reference_loss));
    CHECK_CLOSE(compare_gradients(0), 0, 1e-5);
    if (test_failures_in_claim > failures)
        printf("    seed %" PRIu64 ", rank %d: bytes %.0f and %.0f, expected %.0f and %.0f\n", seed, rank,
               sent(COMM_HEADS) - before[0], sent(COMM_RING) - before[1], bytes[0], bytes[1]);
}

static void any_plan_gives_the_loss_and_gradients_of_one_rank(void) {
    int cases = getenv("LAW_CASES") ? atoi(getenv("LAW_CASES")) : 30;
    uint64_t first = getenv("LAW_SEED") ? (uint64_t)atoi(getenv("LAW_SEED")) : 1000 * (uint64_t)size;
    for (int i = 0; i < cases && test_failures_in_claim == 0; i++) {
        one_case(first + (uint64_t)i);
        MPI_Allreduce(MPI_IN_PLACE, &test_failures_in_claim, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    // What the planner is for: were it never seen here, the claim would say less than it seems to.
    if (flex_plans >= 10 && size > 3) CHECK(unlike_degrees >= flex_plans / 10);
    if (rank == 0) printf("    %d of %d flexible plans have groups of unlike degrees\n", unlike_degrees, flex_plans);
}

// ---- what moves, and what is held

static void documents_on_single_ranks_move_nothing_in_attention(void) {
    Batch* b = &run.batch;
    draw_pieces(b, 7);
    count_pieces(b, 1);
    plan_alone(b);
    for (int i = 0; i < b->plan.n_items; i++) b->plan.items[i].first_rank = i % size;
    plan_set_rounds(&b->plan, (int*)b->plan_scratch);
    double before = sent(COMM_HEADS) + sent(COMM_RING);
    step_loss();
    CHECK(sent(COMM_HEADS) + sent(COMM_RING) == before);
    zero_clear_grads(&run.model);
}

static double sent_otherwise(void) { return sent(COMM_OTHER) + sent(COMM_STATE) + sent(COMM_HOST); }

// Steps as in training, each under another plan: gradients and weights move by the formula, optimizer state not at all.
static void plans_that_change_every_step_never_move_optimizer_state(void) {
    enum { STEPS = 4 };
    Batch* b = &run.batch;
    Model* m = &run.model;
    char why[ERR_BYTES];
    double gradients = sent(COMM_GRADIENTS), weights = sent(COMM_PARAMETERS), state = sent_otherwise();
    for (int step = 1; step <= STEPS; step++) {
        draw_pieces(b, 70 + (uint64_t)step);
        count_pieces(b, step);
        if (plan_random(&b->plan, step, b->lengths, b->n_pieces, &run.limits, (uint64_t)step, b->plan_scratch, why,
                        sizeof why))
            die("%s", why);
        plan_set_rounds(&b->plan, (int*)b->plan_scratch);
        batch_list(b, &run);
        run_items(&run, run.data.train, 1);
        model_update(m, &run.config, 1e-3, step);
        zero_gather(m);
        double sums[2];
        m->k->download(sums, m->loss_sum, sizeof sums, m->s);
        CHECK(isfinite(sums[0]) && isfinite(sums[1]));
    }
    zero_settle(m);
    double all = (double)shape_param_elems(&m->shape) * 4 * (size - 1) / size;
    // Whatever a transfer of optimizer state might be called: besides gradients, weights and attention only the sums of
    // losses and norms have moved, two doubles a step there and back.
    CHECK(sent_otherwise() - state == STEPS * 2.0 * (size - 1) * CEIL_DIV(2, size) * sizeof(double));
    if (m->zero.stage == 1) {
        CHECK(sent(COMM_GRADIENTS) - gradients == STEPS * all);
        CHECK(sent(COMM_PARAMETERS) - weights == STEPS * all);
    } else CHECK(size == 1 || sent(COMM_GRADIENTS) > gradients);
}

// A model that has learnt that everything takes twice as long foresees twice the time, and the same terms before that.
static void terms_are_those_of_the_model_before_it_learnt(void) {
    double before[REFINE_TERMS], makespan;
    Batch* b = &run.batch;
    draw_pieces(b, 11);
    count_pieces(b, 1);
    CHECK(b->foreseen && b->forecast.makespan > 0);
    memcpy(before, b->terms, sizeof before);
    makespan = b->forecast.makespan;
    for (int i = 0; i < REFINE_TERMS; i++) run.refine.theta[i] = 2;
    run_set_cost(&run);
    count_pieces(b, 1);
    // Factors of two are exact: any difference would be another plan.
    CHECK_CLOSE(b->forecast.makespan, 2 * makespan, 1e-9 * makespan);
    for (int i = 0; i < REFINE_TERMS; i++) CHECK_CLOSE(b->terms[i], before[i], 1e-9 * makespan);
    refine_start(&run.refine);
    run_set_cost(&run);
}

int main(int n_arguments, char** arguments) {
    ranks_start(&n_arguments, &arguments);
    int n_options = n_arguments - 1 - (n_arguments % 2 == 0);  // options come in pairs, then perhaps the program's path
    snprintf(work, sizeof work, "%s/ragged-law-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (rank == 0 && !mkdtemp(work)) die("cannot make %s", work);
    MPI_Bcast(work, sizeof work, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) write_corpus();
    MPI_Barrier(MPI_COMM_WORLD);
    open_trainer(n_options, arguments + 1);
    if (rank > 0) fflush(stdout), dup2(STDERR_FILENO, STDOUT_FILENO);  // which the trainer had silenced
    reference = (float*)calloc(shape_param_elems(&run.model.shape), sizeof(float));
    RUN_TOGETHER(any_plan_gives_the_loss_and_gradients_of_one_rank);
    RUN_TOGETHER(documents_on_single_ranks_move_nothing_in_attention);
    RUN_TOGETHER(plans_that_change_every_step_never_move_optimizer_state);
    RUN_TOGETHER(terms_are_those_of_the_model_before_it_learnt);
    free(reference);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        char command[600];
        snprintf(command, sizeof command, "rm -rf '%s'", work);
        if (system(command)) printf("    cannot remove %s\n", work);
    }
    run_close(&run);
    return ranks_done();
}
