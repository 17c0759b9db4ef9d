// test_resized.c - steps in which ranks of a tensor-parallel group leave work out or give it away, against steps in
// which every rank computes what it owns.
//
//   mpirun -n N build/release/test/test_resized [train's options, e.g. --tp 2] [PROGRAM]
//
// The trainer itself is in this program. The oracle of resizing: a step that leaves columns out equals a
// dense one whose weights are 0 where they were left out, and whose gradients there are set to 0. Of migration: a step
// whose slices are computed by others equals one in which nobody gives anything away. One group of all ranks, or with
// --tp T groups of T ranks that share documents, with --pp P in stages of a pipeline. Models are a GPT-2, one of
// another architecture with fewer key/value heads than heads, and one with fewer of them than ranks. RESIZED_CASES=N
// draws N cases of each kind and model.
//
// Tolerances, of the norm of a gradient: fp32 in another order of sums is off by some 2^-24 of the sum of magnitudes. A
// resized step leaves products with 0 out of sums of at most some hundred terms and so keeps their order but for the
// blocks of a matmul: 1e-6. Slices that move are added in by another rank, and so is what all layers behind make of it:
// 1e-5. A list, mask or slice that is wrong is off by 1e-2 and more.
#include "test/flops.h"
#include "test/resized_plans.h"

static float *expected, *found, *saved, *zeros;  // (elems) each, with room for the whole model

// ---- steps

// Pieces of the training documents from number `first` on, round and round; some rows on every rank.
static void draw(int first, int tokens) {
    char why[ERR_BYTES];
    Batch* b = &run->batch;
    int64_t pieces = sampler_pieces(run->data.train, SPLIT_TRAIN);
    b->n_pieces = 0;
    b->training = 1;
    for (int64_t i = first; tokens > 0; i++) {
        Piece piece = sampler_train_piece(run->data.train, (SamplerPosition){.index = i % pieces});
        if (piece.length > tokens) break;
        tokens -= piece.length;
        b->pieces[b->n_pieces++] = piece;
    }
    if (batch_plan(b, run, 1, why)) die("%s", why);
}

static void fetch_gradients(float* grads) {
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        zero_fetch_grads(m, &t, grads + t.offset);
    }
    zero_clear_grads(m);
}

// Forward and backward of the batch as work stands. Returns the loss, leaves all gradients in grads. masked: what is
// left out counts 0, before ranks that share key/value heads add theirs; with ZeRO-2, which adds them up in rounds,
// behind it.
static double step_masked(float* grads, int masked) {
    int in_rounds = m->ranks->zero.stage > 1;
    zero_settle(m);
    work_begin(m);
    run_micro_batches(run, run->data.train, 1);
    work_end(m);
    if (masked && !in_rounds) visit_elements(LEFT_OUT, set_to_zero, (float*)m->array[MODEL_GRADS]);
    zero_reduce(m);
    double loss = loss_sum(run) / (double)MAX(run->batch.n_targets, 1);
    fetch_gradients(grads);
    if (masked && in_rounds) visit_elements(LEFT_OUT, set_to_zero, grads);
    return loss;
}

static double step(float* grads) { return step_masked(grads, 0); }

// The largest difference of a tensor's gradient, relative to its norm.
static double largest_difference(const float* a, const float* b, ParamTensor* where) {
    double worst = 0;
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        double norm = norm_of(b + t.offset, t.elems), sum = 0;
        for (size_t j = t.offset; j < t.offset + t.elems; j++) sum += ((double)a[j] - b[j]) * ((double)a[j] - b[j]);
        double error = norm > 0 ? sqrt(sum) / norm : sqrt(sum);
        if (error <= worst) continue;
        worst = isfinite(error) ? error : INFINITY;
        *where = t;
    }
    return worst;
}

static void check_gradients(const float* a, const float* b, double tolerance) {
    ParamTensor where = {0};
    double worst = largest_difference(a, b, &where);
    CHECK_CLOSE(worst, 0, tolerance);
    if (!(worst <= tolerance)) printf("    rank %d: %s of layer %d\n", rank, param_table[where.id].name, where.layer);
}

// ---- cases

// The dense step with masked weights: loss, and gradients in `expected`.
static double masked_step(void) {
    zero_settle(m);
    if (plan.kept) memcpy(saved, weights(), elems * sizeof(float));
    set_plan(0);
    visit_elements(LEFT_OUT, set_to_zero, weights());
    double loss = step_masked(expected, 1);
    if (plan.kept) memcpy(weights(), saved, elems * sizeof(float));
    set_plan(plan.active);
    return loss;
}

static uint64_t sent(CommPurpose purpose) { return m->tp->sent[purpose][0] + m->tp->sent[purpose][1]; }

// Elements of a moved unit with its biases: rows of its channels, of a key and a value, and the columns behind them.
static uint64_t elems_of_unit(int kind) {
    int HS = m->whole.HS, queries = m->whole.NH / m->whole.NKV * HS, columns = kind == 0 ? queries : 1;
    int rows = kind == 0 ? queries + 2 * HS : m->whole.arch == ARCH_GPT2 ? 1 : 2;
    int biases = shape_has(&m->whole, param_table[kind ? FCB : QKVB].needs) ? rows : 0;
    return (uint64_t)((rows + columns) * m->whole.C + biases);
}

// A step sends each slice that moves once, and its gradient back once, in fp32.
static uint64_t bytes_of_moves(void) {
    uint64_t bytes = 0, elem = dtype_bytes(m->dt);
    for (int kind = 0; kind < 2; kind++)
        bytes += elems_of_unit(kind) * ((uint64_t)moved_units(kind, 0) * elem + (uint64_t)moved_units(kind, 1) * 4);
    return bytes * (uint64_t)m->shape.L;
}

// The planned step against the dense one with masked weights: loss, gradients, and what is sent of activations.
static void check_case(double tolerance) {
    uint64_t before = sent(COMM_TENSOR);
    double dense = masked_step();
    uint64_t usual = sent(COMM_TENSOR) - before, slices = sent(COMM_SLICES);
    double loss = step(found);
    CHECK(sent(COMM_TENSOR) - before == 2 * usual && (usual > 0) == (run->batch.n_rows > 0));
    CHECK(sent(COMM_SLICES) - slices == bytes_of_moves());
    CHECK_CLOSE(loss, dense, tolerance * fabs(dense));
    check_gradients(found, expected, tolerance);
}

typedef void (*DrawPlan)(uint64_t seed);

static void run_cases(DrawPlan make_plan, double tolerance) {
    int cases = getenv("RESIZED_CASES") ? atoi(getenv("RESIZED_CASES")) : 3, accumulated = 0;
    for (int i = 0; i < cases; i++) {
        int failures = test_failures_in_claim;
        no_plan();
        make_plan((uint64_t)(100 * size + i));
        draw(5 * i, (i % 3 == 0 ? CONTEXT : BATCH / 4) * m->comm->size);
        accumulated += run->batch.n_rows > 1;
        for (int l = 0; l < m->shape.L; l++) m->ranks->layout.layer[l].recompute = (Recompute)(i % 3);
        set_plan(plan.active);
        check_case(tolerance);
        if (test_failures_in_claim > failures) printf("    rank %d: seed %d\n", rank, 100 * size + i);
    }
    CHECK(accumulated >= cases / 3);
    for (int l = 0; l < m->shape.L; l++) m->ranks->layout.layer[l].recompute = RECOMPUTE_NONE;
    no_plan();
}

// One rank, all but one, or all of them leave something out.
static int leaves_out(uint64_t seed) {
    int who = (int)(seed % 3), last = tp_rank(m) == tp_size(m) - 1;
    return who == 0 ? last : who == 1 ? !last : 1;
}

static void plan_columns(uint64_t seed) {
    if (leaves_out(seed)) leave_out(0, seed);
}

static int givers_of(uint64_t seed) { return 1 + draw_number(seed, 1, MAX(1, tp_size(m) / 2)); }

static void plan_moves(uint64_t seed) { move_slices(givers_of(seed), seed); }

static void plan_both(uint64_t seed) {
    plan_moves(seed);
    // Whoever has given all its heads away has no columns of theirs to choose from.
    if (leaves_out(seed) && staying_units(0) > 0 && staying_units(1) > 0) leave_out(0, seed);
}

static void a_step_without_columns_is_a_dense_step_with_masked_weights(void) { run_cases(plan_columns, 1e-6); }
static void slices_that_others_compute_change_neither_loss_nor_gradients(void) { run_cases(plan_moves, 1e-5); }
static void what_stays_of_a_rank_that_gives_may_be_left_out(void) { run_cases(plan_both, 1e-5); }

// A sum over all weights and biases that the ranks of the group compute with, whoever computes them.
static uint64_t computed_bits(void) {
    uint64_t sum = 0;
    size_t elem = dtype_bytes(m->dt);
    work_begin(m);
    for (int l = 0; l < m->shape.L; l++)
        for (int id = 0; id < N_LINEARS; id++) {
            Linear w = work_linear(m, (LinearId)id, l);
            for (size_t i = 0; i < (size_t)w.OC * (size_t)w.K; i++)
                sum += hash_bytes((const char*)w.w + i * elem, elem, (uint64_t)(l * N_LINEARS + id));
            for (size_t i = 0; w.b && i < (size_t)w.OC; i++)
                sum += hash_bytes((const char*)w.b + i * elem, elem, (uint64_t)(1000 + l * N_LINEARS + id));
        }
    work_end(m);
    zero_clear_grads(m);
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

static void slices_have_the_bits_of_their_owners(void) {
    no_plan();
    uint64_t usual = computed_bits();
    for (uint64_t seed = 0; seed < 6; seed++) {
        no_plan();
        plan_moves(seed);
        set_plan(plan.active);
        CHECK(computed_bits() == usual);
    }
    no_plan();
}

// ---- FLOPs

static const Kernels* plain;
static double flops[3];  // forward, input gradient, weight gradient: of all matmuls

static void count_forward(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C,
                          int OC, DType dt, Stream s) {
    flops[0] += 2.0 * N * C * OC;
    plain->matmul_forward(out, gelu, x, weight, bias, N, C, OC, dt, s);
}

static void count_backward_input(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                 DType dt, Stream s) {
    flops[1] += 2.0 * N * C * OC;
    plain->matmul_backward_input(dx, dout, weight, pre, N, C, OC, dt, s);
}

static void count_backward_weight(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                  DType dt, Stream s) {
    flops[2] += 2.0 * N * C * OC;
    plain->matmul_backward_weight(dweight, dbias, dout, x, N, C, OC, dt, s);
}

// FLOPs of the linears in a step, counted at the kernels, and as work_flops says, by matmul.
static void count_step(double counted[3], double said[3]) {
    Kernels counting = *m->k;
    double tokens = 0, classifier = m->shape.no_head ? 0 : 2.0 * m->shape.C * m->shape.vocab_rows;
    plain = m->k;
    counting.matmul_forward = count_forward;
    counting.matmul_backward_input = count_backward_input;
    counting.matmul_backward_weight = count_backward_weight;
    memset(flops, 0, sizeof flops);
    m->k = &counting;
    work_begin(m);
    work_flops(m, said);
    run_micro_batches(run, run->data.train, 1);
    work_end(m);
    m->k = plain;
    zero_reduce(m);
    zero_clear_grads(m);
    for (int i = 0; i < run->batch.n_rows; i++) tokens += run->batch.rows[i + 1].token - run->batch.rows[i].token;
    for (int gemm = 0; gemm < 3; gemm++) counted[gemm] = flops[gemm] - tokens * classifier, said[gemm] *= tokens;
}

// Of the weights of this rank's linears those that lists keep.
static double kept_part(void) {
    double all = 0, left = 0, C = m->shape.C;
    for (int l = 0; l < m->shape.L; l++)
        for (int kind = 0; kind < 2; kind++) {
            double rows = shape_param(&m->shape, matrices[2 * kind], l).rows,
                   columns = shape_param(&m->shape, matrices[2 * kind + 1], l).cols;
            all += C * (rows + columns);
            left += rows * kept[l].columns[2 * kind].n + C * kept[l].columns[2 * kind + 1].n;
        }
    return left / all;
}

static void check_saved(double part) {
    double dense[3], resized[3], said[3];
    no_plan();
    count_step(dense, said);
    for (int gemm = 0; gemm < 3; gemm++) CHECK(dense[gemm] == said[gemm] && dense[gemm] > 0);
    int is_slow = tp_rank(m) == 1;
    if (is_slow) leave_out(part, 3);
    set_plan(plan.active);
    count_step(resized, said);
    if (is_slow) CHECK_CLOSE(kept_part(), part, 0.2);
    for (int gemm = 0; gemm < 3; gemm++) {
        CHECK(resized[gemm] == said[gemm]);
        CHECK_CLOSE(resized[gemm] / dense[gemm], is_slow ? kept_part() : 1, 1e-12);
    }
    no_plan();
}

static void each_of_the_three_matmuls_does_less_by_what_is_left_out(void) {
    draw(0, BATCH / 4);
    check_saved(0.25);
    check_saved(0.75);
}

// ---- what was not computed

static float* wanted;  // for visitors
static int n_unequal, n_visited;
static void count_unequal(float* x, size_t at) { n_unequal += x[at] != wanted[at], n_visited++; }

// Elements of a fate that are not those of `like`.
static int unequal(Fate fate, float* x, float* like) {
    wanted = like, n_unequal = n_visited = 0;
    visit_elements(fate, count_unequal, x);
    return n_unequal;
}

// ---- updates

static void update_with(int64_t t, int micro_batches) {
    zero_settle(m);
    work_begin(m);
    if (micro_batches) run_micro_batches(run, run->data.train, 1);
    model_update(m, &run->config, 1e-2, t);
    zero_gather(m);
    zero_settle(m);
}

static uint64_t hash_elems(const ParamTensor* t, size_t first, uint64_t hash) {
    size_t elem = dtype_bytes(m->dt);
    return hash_bytes((char*)model_weights(m, t->id, t->layer) + first * elem, (t->elems - first) * elem, hash);
}

// What all ranks of the group have: of a key/value head that they share the rows behind those of the queries.
static uint64_t hash_replicated(void) {
    uint64_t hash = 0;
    size_t queries = (size_t)(m->shape.heads * m->shape.HS);
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        if (split_is_replicated(t.id)) hash = hash_elems(&t, 0, hash);
        else if (m->whole.NKV == 1 && t.id == QKVW) hash = hash_elems(&t, queries * (size_t)t.cols, hash);
        else if (m->whole.NKV == 1 && t.id == QKVB) hash = hash_elems(&t, queries, hash);
    }
    return hash;
}

static void check_replicas(uint64_t* last) {
    uint64_t hashes[64], mine = hash_replicated();
    MPI_Allgather(&mine, 1, MPI_UINT64_T, hashes, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    int of_stage = size / m->stages, first = m->stage * of_stage;
    for (int r = first; r < first + of_stage; r++) CHECK(hashes[r] == mine);
    CHECK(mine != *last);
    *last = mine;
    // Ranks of other groups that hold the same part.
    uint64_t whole = hash_bytes(weights(), elems * dtype_bytes(m->dt), 0);
    MPI_Allgather(&whole, 1, MPI_UINT64_T, hashes, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = first + tp_rank(m); r < first + of_stage; r += tp_size(m)) CHECK(hashes[r] == whole);
}

// Another rank leaves out other things in each of them, or gives slices away. In the last one no
// gradient is computed at all: what is frozen must be so on all ranks.
static void what_all_ranks_hold_stays_equal_over_resized_updates(void) {
    uint64_t last = 0;
    for (int t = 1; t <= 7; t++) {
        no_plan();
        if (t % 3 == 0) plan_moves((uint64_t)t);
        else if (tp_rank(m) == t % tp_size(m)) leave_out(0, (uint64_t)t);
        set_plan(plan.active);
        draw(20 * t, BATCH / 4);
        update_with(t, t < 7);
        check_replicas(&last);
    }
    no_plan();
}

typedef struct State {
    float* values[3];  // weights, first moments, second moments: (elems), the latter two of what this rank owns
} State;

static State take_state(void) {
    static const StateKind kinds[] = {STATE_M, STATE_V};
    State state;
    for (int i = 0; i < 3; i++) state.values[i] = (float*)calloc(elems, sizeof(float));
    memcpy(state.values[0], weights(), elems * sizeof(float));
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        Segment segment = shape_segment(&m->shape, i, m->comm->rank);
        for (int k = 0; k < COUNT(kinds) && segment.n > 0; k++)
            memcpy(state.values[1 + k] + segment.tensor.offset + segment.first, zero_owned(m, kinds[k], &segment),
                   segment.n * sizeof(float));
    }
    return state;
}

static void free_state(State* state) {
    for (int i = 0; i < 3; i++) free(state->values[i]);
}

static void check_state(const State* before, const State* after) {
    for (int i = 0; i < 3; i++) {
        CHECK(unequal(LEFT_OUT, after->values[i], before->values[i]) == 0 && n_visited > 0);
        int n = unequal(COMPUTED, after->values[i], before->values[i]);
        CHECK(n > (i == 0 ? 0.99 * n_visited : 0));
    }
}

// Two dense updates first, so that there are moments that would move a weight on; decay would, too.
static void what_is_left_out_rests_while_the_rest_is_trained(void) {
    CHECK(run->config.weight_decay > 0);
    no_plan();
    for (int t = 1; t <= 2; t++) draw(10 * t, BATCH / 4), update_with(t, 1);
    leave_out(0, 1);
    set_plan(1);
    State before = take_state();
    for (int t = 3; t <= 4; t++) draw(10 * t, BATCH / 4), update_with(t, 1);
    State after = take_state();
    check_state(&before, &after);
    free_state(&before);
    free_state(&after);
    no_plan();
}

// ---- between steps

static void evaluation_does_not_see_what_steps_leave_out_or_give_away(void) {
    int64_t targets = 0, again = 0;
    no_plan();
    double plain_loss = evaluate(run, &targets);
    CHECK(targets > 0 && isfinite(plain_loss));
    draw(0, BATCH / 4);
    double dense = step(expected);
    for (int i = 0; i < 2; i++) {
        no_plan();
        if (i == 1) plan_moves(5);
        else leave_out(0, 5);
        set_plan(1);
        double planned = evaluate(run, &again);
        CHECK(planned == plain_loss && again == targets);
        draw(0, BATCH / 4);
        double before = step(found);
        planned = evaluate(run, &again);
        CHECK(planned == plain_loss && again == targets);
        draw(0, BATCH / 4);
        CHECK(step(found) == before);  // and the plan is still there
        if (i == 0) CHECK(fabs(before - dense) > 1e-4);
    }
    no_plan();
}

// ---- memory

// Of work, which begins as rubbish and ends before a guard.
enum { GUARD = 64 };
static unsigned char *work_memory, *guard;

static void guard_work(void) {
    size_t bytes = work_bytes(m, &run->model.ranks->work_needs);
    work_memory = (unsigned char*)m->k->alloc(bytes + GUARD);
    if (!work_memory) die("no memory for work");
    memset(work_memory, 0x5a, bytes);
    guard = (unsigned char*)memset(work_memory + bytes, 0xa5, GUARD);
    work_close(m->ranks->work);
    m->ranks->work = work_open(m, &run->model.ranks->work_needs, work_memory);
}

static void work_stays_within_its_memory(void) {
    for (int i = 0; i < GUARD; i++) CHECK(guard[i] == 0xa5);
}

// ---- the program

// Biases begin at 0, where it would not show who adds them. They are counted from the end, where ranks have the same
// keys and values if any.
static void draw_biases(void) {
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        for (size_t j = 0; t.rows == 1 && j < t.elems && m->dt == DT_F32 && m->ranks->zero.stage < 3; j++)
            weights()[t.offset + j] += 0.1f * ((float)random_uniform(1000 + (uint64_t)i, t.elems - j) - 0.5f);
    }
}

typedef enum TestModel { A_GPT2, OF_FEWER_KV_HEADS, OF_SHARED_KV_HEADS, ROUNDED_STOCHASTICALLY, N_MODELS } TestModel;

// Another architecture for each number of ranks. A head has 8 channels, which are not width / heads.
static void add_model(Arguments* a, TestModel model, int tp) {
    int kv_heads = model == OF_FEWER_KV_HEADS ? MAX(4, tp) : 1, heads = kv_heads > 1 ? 2 * kv_heads : tp + 1;
    add_options(a, "--width 96 --heads %d", model == A_GPT2 ? 8 : heads);
    if (model == A_GPT2) return;
    add_options(a, "--arch %s,kv-heads=%d,head-size=8,hidden=200,tie=no",
                arch_table[kv_heads > 1 ? 1 + tp % 3 : ARCH_QWEN2].name, kv_heads);
    if (model == ROUNDED_STOCHASTICALLY) add_options(a, "--dtype bf16,rounding=stochastic");
}

static void open_model(TestModel model, int n_options, char** options) {
    RankIdentity identity;
    char err[ERR_BYTES];
    Arguments* a = &trainer.arguments;
    draw_arguments(a, 1, 1, size, 0, 0, NULL);
    add_options(a, "--capacity 256 --recompute none --tp %d --balance semi", size);
    add_model(a, model, option_number(n_options, options, "--tp", size));
    for (int i = 0; i < n_options; i++) add_options(a, "%s", options[i]);
    if (rank_identity(&identity, err)) die("%s", err);
    trainer_open(&trainer, &identity);
    draw_biases();
    guard_work();
    elems = shape_param_elems(&m->shape);
    if (rank == 0)
        printf("%s, %d heads, %d of keys and values\n", arch_table[m->whole.arch].title, m->whole.NH, m->whole.NKV);
    float** arrays[] = {&expected, &found, &saved, &zeros};
    for (int i = 0; i < COUNT(arrays); i++) *arrays[i] = (float*)calloc(shape_param_elems(&m->whole), sizeof(float));
}

static void close_model(void) {
    m->k->free_memory(work_memory);
    trainer_close(&trainer);
    float* arrays[] = {expected, found, saved, zeros};
    for (int i = 0; i < COUNT(arrays); i++) free(arrays[i]);
}

// What is left out or frozen of shared key/value heads is a sum over ranks, which no claim here follows; with ZeRO-2
// nothing of it is known that they do not share.
static void run_with(TestModel model) {
    int is_masked = model != OF_SHARED_KV_HEADS || m->ranks->zero.stage == 1;
    if (model == ROUNDED_STOCHASTICALLY) {
        RUN_TOGETHER(slices_have_the_bits_of_their_owners);
        RUN_TOGETHER(what_all_ranks_hold_stays_equal_over_resized_updates);
        return;
    }
    if (is_masked) RUN_TOGETHER(a_step_without_columns_is_a_dense_step_with_masked_weights);
    RUN_TOGETHER(slices_that_others_compute_change_neither_loss_nor_gradients);
    if (is_masked) RUN_TOGETHER(what_stays_of_a_rank_that_gives_may_be_left_out);
    RUN_TOGETHER(slices_have_the_bits_of_their_owners);
    RUN_TOGETHER(each_of_the_three_matmuls_does_less_by_what_is_left_out);
    RUN_TOGETHER(what_all_ranks_hold_stays_equal_over_resized_updates);
    if (model != OF_SHARED_KV_HEADS) RUN_TOGETHER(what_is_left_out_rests_while_the_rest_is_trained);
    if (model == A_GPT2) RUN_TOGETHER(evaluation_does_not_see_what_steps_leave_out_or_give_away);
    RUN_TOGETHER(work_stays_within_its_memory);
}

int main(int n_arguments, char** arguments) {
    ranks_start(&n_arguments, &arguments);
    make_corpus();
    int n_options = n_arguments - 1 - (n_arguments % 2 == 0);  // options come in pairs, then perhaps the program's path
    for (int model = 0; model < N_MODELS; model++) {
        open_model((TestModel)model, n_options, arguments + 1);
        run_with((TestModel)model);
        close_model();
    }
    remove_corpus();
    return ranks_done();
}
