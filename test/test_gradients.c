// test_gradients.c - the backward pass of every reference op against central finite differences in double. Embeddings,
// whose gradients are sums in a known order, are in test_ops.c; what no slope shows is in test_golden.c.
//
// Each claim sets up one op on DT_F64 tensors and a scalar loss, the sum of fixed random weights times the outputs.
// numerical() moves one input element by +-h, h = 1e-4. With inputs of order 1 its truncation error h^2/6 f''' is
// below 1e-8 f''' and its rounding error 1e-16/h below 1e-11, so what remains is what the reference keeps in fp32:
// statistics (mean, rstd, lse), weight gradients and incoming sums, each rounded with 2^-24 = 6e-8, a few dozen
// times in the longest chain here. TOLERANCE = 1e-5 of the largest gradient covers both, and no wrong formula.
#include "kernels/cpu/cpu.h"
#include "test/test.h"

static const double TOLERANCE = 1e-5, H = 1e-4;

#define REF (&cpu_reference)

enum { MOST = 4096 };  // elements of the largest tensor here

static void fill(double* x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) x[i] = random_normal(seed, i);
}

static double dot(const double* a, const double* b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// Compares gradient[i] - before[i] (type dt, before NULL: zeros) with the slope of loss() in x[i], for every i.
static void check_gradient(double* x, size_t n, double (*loss)(void), const void* gradient, DType dt,
                           const void* before) {
    static double found[MOST], expected[MOST];
    double largest = 0;
    CHECK(n > 0 && n <= MOST);
    for (size_t i = 0; i < n; i++) {
        double x0 = x[i], above, below;
        x[i] = x0 + H, above = loss();
        x[i] = x0 - H, below = loss();
        x[i] = x0;
        expected[i] = (above - below) / (2 * H);
        found[i] = dt == DT_F64 ? ((const double*)gradient)[i] : ((const float*)gradient)[i];
        if (before) found[i] -= dt == DT_F64 ? ((const double*)before)[i] : ((const float*)before)[i];
        largest = fmax(largest, fabs(expected[i]));
    }
    CHECK(largest > 0);
    for (size_t i = 0; i < n; i++) CHECK_CLOSE(found[i], expected[i], TOLERANCE * largest);
}

// Values that a `+=` output holds before the call: few bits, so that adding to them in fp32 loses less than 2^-22.
static void fill_before(void* x, void* copy, size_t n, DType dt) {
    for (size_t i = 0; i < n; i++) {
        double value = (double)(hash64(i) % 5) / 4 - 0.5;
        if (dt == DT_F64) ((double*)x)[i] = ((double*)copy)[i] = value;
        else ((float*)x)[i] = ((float*)copy)[i] = (float)value;
    }
}

// ---- norms, alone and after the residual sum

enum { L_N = 4, L_C = 13 };
static struct { double a[L_N * L_C], b[L_N * L_C], weight[L_C], bias[L_C], w[L_N * L_C], w_sum[L_N * L_C]; } l;
static int rms, residual;

static void norm(double* sum, double* out, float* mean, float* rstd) {
    REF->norm_forward(sum, out, rms ? NULL : mean, rstd, l.a, residual ? l.b : NULL, l.weight, rms ? NULL : l.bias,
                      1e-5f, L_N, L_C, DT_F64, NULL);
}

static double norm_loss(void) {
    double sum[L_N * L_C] = {0}, out[L_N * L_C];
    float mean[L_N], rstd[L_N];
    norm(sum, out, mean, rstd);
    return dot(out, l.w, L_N * L_C) + dot(sum, l.w_sum, L_N * L_C);
}

// A sum receives a gradient of its own, which is what dx holds when norm_backward adds to it.
static void check_norm(int is_rms, int with_sum) {
    double sum[L_N * L_C], out[L_N * L_C], dx[L_N * L_C], dx0[L_N * L_C];
    float mean[L_N], rstd[L_N], dweight[L_C], dbias[L_C], dweight0[L_C], dbias0[L_C];
    rms = is_rms, residual = with_sum;
    fill(l.a, COUNT(l.a), 4), fill(l.b, COUNT(l.b), 5), fill(l.weight, L_C, 6), fill(l.bias, L_C, 7);
    fill(l.w, COUNT(l.w), 8), fill(l.w_sum, COUNT(l.w_sum), 9);
    fill_before(dx, dx0, COUNT(dx), DT_F64);
    fill_before(dweight, dweight0, L_C, DT_F32), fill_before(dbias, dbias0, L_C, DT_F32);
    for (int i = 0; i < L_N * L_C && residual; i++) dx[i] += l.w_sum[i];
    norm(sum, out, mean, rstd);
    REF->norm_backward(dx, dweight, rms ? NULL : dbias, NULL, l.w, residual ? sum : l.a, l.weight, rms ? NULL : mean,
                       rstd, L_N, L_C, DT_F64, NULL);
    check_gradient(l.a, COUNT(l.a), norm_loss, dx, DT_F64, dx0);
    if (residual) check_gradient(l.b, COUNT(l.b), norm_loss, dx, DT_F64, dx0);
    check_gradient(l.weight, L_C, norm_loss, dweight, DT_F32, dweight0);
    if (!rms) check_gradient(l.bias, L_C, norm_loss, dbias, DT_F32, dbias0);
}

CLAIM(layernorm_backward_is_the_slope_of_forward) { check_norm(0, 0), check_norm(0, 1); }
CLAIM(rmsnorm_backward_is_the_slope_of_forward) { check_norm(1, 0), check_norm(1, 1); }

// ---- activations

enum { U_N = 3, U_U = 7 };
static struct { double x[U_N * 2 * U_U], w[U_N * U_U]; } u;
static ActFunction function;

static double activation_loss(void) {
    double out[U_N * U_U];
    REF->activation_forward(out, u.x, function, U_N, U_U, DT_F64, NULL);
    return dot(out, u.w, U_N * U_U);
}

CLAIM(activation_backward_is_the_slope_of_forward) {
    for (function = ACT_GELU; function <= ACT_SWIGLU; function++) {
        double dx[U_N * 2 * U_U];
        fill(u.x, COUNT(u.x), 27), fill(u.w, COUNT(u.w), 28);
        REF->activation_backward(dx, u.w, u.x, function, U_N, U_U, DT_F64, NULL);
        check_gradient(u.x, (size_t)(U_N * U_U * act_runs(function)), activation_loss, dx, DT_F64, NULL);
    }
}

// ---- rotary positions, with QK-norm and without: 3 query heads, 2 key heads, and an element behind them

enum { R_N = 4, R_NH = 3, R_NKV = 2, R_HS = 6, R_LD = (R_NH + R_NKV) * R_HS + 1, R_CONTEXT = 9 };
static struct { double x[R_N * R_LD], q_weight[R_HS], k_weight[R_HS], w[R_N * R_LD], raw[R_N * (R_LD - 1)]; } r;
static float turns[R_CONTEXT * R_HS];
static const int turn_positions[R_N] = {0, 8, 3, 3};
static Rotary rotary = {turn_positions, turns, R_N, R_NH, R_NKV, R_HS, R_LD, NULL, NULL, 1e-6f};

static double rotary_loss(void) {
    double x[R_N * R_LD];
    memcpy(x, r.x, sizeof x);
    REF->rotary_forward(x, rotary.q_weight ? r.raw : NULL, &rotary, DT_F64, NULL);
    return dot(x, r.w, R_N * R_LD);
}

static void check_rotary(const double* q_weight, const double* k_weight) {
    double dx[R_N * R_LD];
    float dq_weight[R_HS], dk_weight[R_HS], dq_weight0[R_HS], dk_weight0[R_HS];
    rotary.q_weight = q_weight, rotary.k_weight = k_weight;
    fill(r.x, COUNT(r.x), 29), fill(r.w, COUNT(r.w), 30), fill(r.q_weight, R_HS, 31), fill(r.k_weight, R_HS, 32);
    for (int i = 0; i < R_CONTEXT * R_HS / 2; i++)
        turns[2 * i] = (float)cos(0.4 * i), turns[2 * i + 1] = (float)sin(0.4 * i);
    fill_before(dq_weight, dq_weight0, R_HS, DT_F32), fill_before(dk_weight, dk_weight0, R_HS, DT_F32);
    rotary_loss();  // leaves raw
    memcpy(dx, r.w, sizeof dx);
    REF->rotary_backward(dx, q_weight ? dq_weight : NULL, q_weight ? dk_weight : NULL, q_weight ? r.raw : NULL, &rotary,
                         DT_F64, NULL);
    check_gradient(r.x, COUNT(r.x), rotary_loss, dx, DT_F64, NULL);
    if (q_weight) check_gradient(r.q_weight, R_HS, rotary_loss, dq_weight, DT_F32, dq_weight0);
    if (q_weight) check_gradient(r.k_weight, R_HS, rotary_loss, dk_weight, DT_F32, dk_weight0);
}

CLAIM(rotary_backward_is_the_slope_of_forward) {
    check_rotary(NULL, NULL);
    check_rotary(r.q_weight, r.k_weight);
}

// ---- matmul, plain and with GELU before or after it

enum { M_N = 5, M_C = 7, M_OC = 6 };
static struct { double x[M_N * M_C], weight[M_OC * M_C], bias[M_OC], w[M_N * M_OC]; } m;

static double matmul_loss(void) {
    double out[M_N * M_OC];
    REF->matmul_forward(out, NULL, m.x, m.weight, m.bias, M_N, M_C, M_OC, DT_F64, NULL);
    return dot(out, m.w, M_N * M_OC);
}

static double gelu_then_matmul_loss(void) {
    double act[M_N * M_C], out[M_N * M_OC];
    REF->activation_forward(act, m.x, ACT_GELU, M_N, M_C, DT_F64, NULL);
    REF->matmul_forward(out, NULL, act, m.weight, m.bias, M_N, M_C, M_OC, DT_F64, NULL);
    return dot(out, m.w, M_N * M_OC);
}

static void fill_matmul(void) {
    fill(m.x, COUNT(m.x), 10), fill(m.weight, COUNT(m.weight), 11), fill(m.bias, M_OC, 12), fill(m.w, COUNT(m.w), 13);
}

CLAIM(matmul_backward_is_the_slope_of_forward) {
    double dx[M_N * M_C];
    float dweight[M_OC * M_C], dbias[M_OC], dweight0[M_OC * M_C], dbias0[M_OC];
    fill_matmul();
    fill_before(dweight, dweight0, COUNT(dweight), DT_F32), fill_before(dbias, dbias0, M_OC, DT_F32);
    REF->matmul_backward_input(dx, m.w, m.weight, NULL, M_N, M_C, M_OC, DT_F64, NULL);
    REF->matmul_backward_weight(dweight, dbias, m.w, m.x, M_N, M_C, M_OC, DT_F64, NULL);
    check_gradient(m.x, COUNT(m.x), matmul_loss, dx, DT_F64, NULL);
    check_gradient(m.weight, COUNT(m.weight), matmul_loss, dweight, DT_F32, dweight0);
    check_gradient(m.bias, M_OC, matmul_loss, dbias, DT_F32, dbias0);
    REF->matmul_backward_weight(dweight0, NULL, m.w, m.x, M_N, M_C, M_OC, DT_F64, NULL);
    CHECK(memcmp(dweight, dweight0, sizeof dweight) == 0);  // the bias is optional
}

CLAIM(matmul_backward_with_pre_is_the_slope_through_gelu) {
    double dpre[M_N * M_C];
    fill_matmul();
    REF->matmul_backward_input(dpre, m.w, m.weight, m.x, M_N, M_C, M_OC, DT_F64, NULL);
    check_gradient(m.x, COUNT(m.x), gelu_then_matmul_loss, dpre, DT_F64, NULL);
}

// ---- attention: two documents, the first with fewer queries than keys; 4 query heads with 4, 2 or 1 key/value heads

enum { A_NH = 4, A_HS = 3, A_LDQ = 14, A_LDKV = 13, A_LDO = 15, A_NQ = 3 + 4, A_NK = 5 + 4 };
static const int cu_q[] = {0, 3, 7}, cu_k[] = {0, 5, 9};
static double q[A_NQ * A_LDQ], k[A_NK * A_LDKV], v[A_NK * A_LDKV], w_out[A_NQ * A_LDO];
static Attention attention = {q,      k,     v, cu_q, cu_k, 0,    0,           A_LDQ,
                              A_LDKV, A_LDO, 2, A_NH, A_NH, A_HS, .causal = 1, .scale = 0.7f};

static double attention_loss(void) {
    double out[A_NQ * A_LDO] = {0}, sum = 0;
    float lse[A_NH * A_NQ];
    REF->attention_forward(out, lse, &attention, DT_F64, NULL);
    for (int n = 0; n < A_NQ; n++) sum += dot(out + n * A_LDO, w_out + n * A_LDO, A_NH * A_HS);
    return sum;
}

static void check_attention(void) {
    double out[A_NQ * A_LDO], dq[A_NQ * A_LDQ], dk[A_NK * A_LDKV], dv[A_NK * A_LDKV];
    float lse[A_NH * A_NQ];
    for (attention.causal = 0; attention.causal <= 1; attention.causal++) {
        fill(q, COUNT(q), 14), fill(k, COUNT(k), 15), fill(v, COUNT(v), 16), fill(w_out, COUNT(w_out), 17);
        memset(dq, 0, sizeof dq), memset(dk, 0, sizeof dk), memset(dv, 0, sizeof dv), memset(out, 0, sizeof out);
        REF->attention_forward(out, lse, &attention, DT_F64, NULL);
        REF->attention_backward(dq, dk, dv, w_out, out, lse, &attention, DT_F64, NULL);
        check_gradient(q, COUNT(q), attention_loss, dq, DT_F64,
                       NULL);  // columns of padding included: no slope, no gradient
        check_gradient(k, COUNT(k), attention_loss, dk, DT_F64, NULL);
        check_gradient(v, COUNT(v), attention_loss, dv, DT_F64, NULL);
    }
}

CLAIM(attention_backward_is_the_slope_of_forward) { check_attention(); }

CLAIM(attention_backward_of_shared_keys_is_the_slope_of_forward) {
    static const int offsets[] = {-1, 1};
    for (attention.NKV = 1; attention.NKV <= 2; attention.NKV++) {
        attention.causal_offset = offsets;  // the first query of one document sees no key
        check_attention();
        attention.causal_offset = NULL;
        check_attention();
    }
    attention.NKV = A_NH;
}

// The first document with its keys in two parts, 2 and 3, whose shares of the gradients are added in fp32.
static void check_parts(void) {
    static const int two_keys[] = {0, 2}, three_keys[] = {0, 3}, first_offset = 2, second_offset = 0;
    double out[A_NQ * A_LDO] = {0};
    float lse[A_NH * A_NQ], dq[3 * A_LDQ], dk[5 * A_LDKV], dv[5 * A_LDKV], dq0[3 * A_LDQ], dk0[5 * A_LDKV],
        dv0[5 * A_LDKV];
    Attention both = attention;
    attention.n_docs = 1;
    for (attention.causal = 0; attention.causal <= 1; attention.causal++) {
        fill(q, COUNT(q), 23), fill(k, COUNT(k), 24), fill(v, COUNT(v), 25), fill(w_out, COUNT(w_out), 26);
        fill_before(dq, dq0, COUNT(dq), DT_F32), fill_before(dk, dk0, COUNT(dk), DT_F32);
        fill_before(dv, dv0, COUNT(dv), DT_F32);
        REF->attention_forward(out, lse, &attention, DT_F64, NULL);
        Attention part = attention;
        part.partial = 1, part.ld_dq = A_LDQ, part.ld_dkv = A_LDKV;
        part.cu_k = two_keys, part.causal_offset = &first_offset;
        REF->attention_backward(dq, dk, dv, w_out, out, lse, &part, DT_F64, NULL);
        part.k = k + 2 * A_LDKV, part.v = v + 2 * A_LDKV, part.cu_k = three_keys, part.causal_offset = &second_offset;
        REF->attention_backward(dq, dk + 2 * A_LDKV, dv + 2 * A_LDKV, w_out, out, lse, &part, DT_F64, NULL);
        check_gradient(q, COUNT(dq), attention_loss, dq, DT_F32, dq0);
        check_gradient(k, COUNT(dk), attention_loss, dk, DT_F32, dk0);
        check_gradient(v, COUNT(dv), attention_loss, dv, DT_F32, dv0);
    }
    attention = both;
}

CLAIM(gradients_of_parts_of_attention_add_up_to_the_slope) {
    for (attention.NKV = 1; attention.NKV <= A_NH; attention.NKV *= 2) check_parts();
    attention.NKV = A_NH;
}

// ---- classifier: its losses are fp32, so the slope is taken of the formula

enum { K_N = 4, K_V = 7, K_VP = 9 };
static double logits[K_N * K_VP], row_weight;
static int targets[K_N] = {3, 0, -1, 6};

static double loss_of_row(int n) {
    double total = 0;
    for (int i = 0; i < K_V; i++) total += exp(logits[n * K_VP + i]);
    return targets[n] < 0 ? 0 : log(total) - logits[n * K_VP + targets[n]];
}

static double classifier_loss(void) {
    double sum = 0;
    for (int n = 0; n < K_N; n++) sum += row_weight * loss_of_row(n);
    return sum;
}

CLAIM(classifier_gradient_is_the_slope_of_its_loss) {
    double gradient[K_N * K_VP], before[K_N * K_VP];
    float losses[K_N];
    fill(logits, COUNT(logits), 21);
    row_weight = 0.375;
    memcpy(gradient, logits, sizeof gradient), memcpy(before, logits, sizeof before);
    REF->classifier(losses, gradient, targets, 1, 0, K_N, K_V, K_VP, DT_F64, NULL);
    CHECK(memcmp(gradient, before, sizeof before) == 0);
    REF->classifier(losses, gradient, targets, (float)row_weight, 1, K_N, K_V, K_VP, DT_F64, NULL);
    for (int n = 0; n < K_N; n++) CHECK_CLOSE(losses[n], loss_of_row(n), 1e-6);
    check_gradient(logits, COUNT(logits), classifier_loss, gradient, DT_F64, NULL);
}

// ---- the loss of a label: its slope is taken of the formula in double, away from where ratios are clipped

static double grpo_of(double nll, double old, double reference, double advantage) {
    double ratio = exp(-nll - old), clipped = fmin(fmax(ratio, 1 - 0.2), 1 + 0.28), apart = reference + nll;
    return 1.5 * (0.3 * (exp(apart) - apart - 1) - fmin(ratio * advantage, clipped * advantage));
}

CLAIM(slopes_of_labels_are_those_of_their_losses) {
    const double old[] = {-1.6, -1.05, -0.95, -0.4}, step = 1e-5;
    for (int i = 0; i < 2 * COUNT(old); i++) {
        float weight = 1.5f, before = (float)old[i / 2], reference = -1.3f, advantage = i % 2 ? -0.7f : 0.7f, slope;
        TokenLoss of = {LOSS_GRPO, &weight, &before, &reference, &advantage, 0.2f, 0.28f, 0.3f};
        CHECK_CLOSE(token_loss(&of, 0, 1, &slope), grpo_of(1, before, reference, advantage), 1e-6);
        double rise = grpo_of(1 + step, before, reference, advantage) - grpo_of(1 - step, before, reference, advantage);
        CHECK_CLOSE(slope, rise / (2 * step), 1e-6);
        of.kind = LOSS_NLL;
        CHECK(token_loss(&of, 0, 2, &slope) == 3 && slope == 1.5f);
        of.kind = LOSS_GIVEN;
        CHECK(token_loss(&of, 0, 2, &slope) == before && slope == 1.5f);
    }
}

// Its probability is e^99 times, or 1 / e^99 of, what other policies gave it.
CLAIM(a_label_that_counts_nothing_costs_nothing_however_unlike_policies_are) {
    static const struct {
        float weight, advantage, others, nll, kl;
    } cases[] = {{0, -1, -100, 1, 0}, {1, 0, -100, 1, 0}, {0, -1, -1, 100, 0.3f}};
    for (int i = 0; i < COUNT(cases); i++) {
        float slope, others = cases[i].others;
        TokenLoss of = {LOSS_GRPO, &cases[i].weight, &others, &others, &cases[i].advantage, 0.2f, 0.28f, cases[i].kl};
        CHECK(token_loss(&of, 0, cases[i].nll, &slope) == 0 && slope == 0);
    }
}

int main(void) { return test_main(); }
