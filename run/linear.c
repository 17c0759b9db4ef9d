// linear.c - see linear.h. One list of columns serves the three matmuls of a linear (Wang et al. 2024): the forward
// pass contracts over them, the gradient of the input exists for them alone, and so does that of the weight. The list
// of the forward pass is that of the backward pass, because lists change only between steps.
#include "run/linear.h"

#include "run/run.h"

// The linear, and where nothing is left of its input, one column of zeros instead: a bias remains.
static Linear linear_of(const Model* m, LinearId id, int l) {
    Linear w = work_linear(m, id, l);
    if (w.K > 0) return w;
    w.K = 1;
    w.w = m->zeros;
    w.dw = (float*)m->spent;
    return w;
}

// The columns of x (N, width) that the linear uses.
static const void* kept_columns(const Model* m, const Linear* w, const void* x, void* scratch, int N) {
    if (w->width == 0) return x ? m->zeros : NULL;
    if (!w->kept || !x) return x;
    m->k->gather_columns(scratch, x, w->kept, N, w->K, w->width, m->dt, m->s);
    return scratch;
}

// An injected straggler does every matmul repeat. Repetitions find their operands in the caches, so on the host the
// rest of the time is spent waiting: all of it takes as many times as long as the first.
typedef struct Repeat {
    int done;
    double began, once;  // by Kernels.clock
} Repeat;

static Repeat begin_repeats(const Model* m) {
    Repeat repeat = {0, 0, 0};
    if (m->injected_slowdown > 0) repeat.began = m->k->clock();
    return repeat;
}

// Rows of the next repetition, the last time a part of them; 0 when there are no more.
static int rows_to_repeat(const Model* m, Repeat* repeat, int N) {
    if (m->injected_slowdown <= 0) return 0;
    double left = m->injected_slowdown - repeat->done;
    if (repeat->done++ == 0) repeat->once = m->k->clock() - repeat->began;
    int rows = left >= 1 ? N : left > 0 ? (int)(left * N) : 0;
    double end = repeat->began + (1 + m->injected_slowdown) * repeat->once;
    while (rows == 0 && m->k->on_host && m->k->clock() < end) continue;
    return rows;
}

// The matmuls alone are what resizing shrinks: columns are gathered and scattered in the time of everything else.
void linear_forward(const Model* m, LinearId id, int l, void* out, void* gelu, const void* x, int N) {
    const Kernels* k = m->k;
    Linear w = linear_of(m, id, l);
    if (w.OC == 0) return;
    x = kept_columns(m, &w, x, m->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    Repeat repeat = begin_repeats(m);
    k->matmul_forward(out, gelu, x, w.w, w.b, N, w.K, w.OC, m->dt, m->s);
    for (int rows; (rows = rows_to_repeat(m, &repeat, N)) > 0;)
        k->matmul_forward(m->discarded, gelu ? m->discarded_too : NULL, x, w.w, w.b, rows, w.K, w.OC, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

static void backward_weight(const Model* m, const Linear* w, const void* dout, const void* x, int N) {
    const Kernels* k = m->k;
    x = kept_columns(m, w, x, m->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    Repeat repeat = begin_repeats(m);
    k->matmul_backward_weight(w->dw, w->db, dout, x, N, w->K, w->OC, m->dt, m->s);
    for (int rows; (rows = rows_to_repeat(m, &repeat, N)) > 0;)
        k->matmul_backward_weight((float*)m->discarded, w->db ? (float*)m->discarded_too : NULL, dout, x, rows, w->K,
                                  w->OC, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

static void backward_input(const Model* m, const Linear* w, void* dx, const void* dout, const void* pre, int N) {
    const Kernels* k = m->k;
    void* computed = w->kept ? m->columns[1] : dx;
    pre = kept_columns(m, w, pre, m->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    Repeat repeat = begin_repeats(m);
    k->matmul_backward_input(computed, dout, w->w, pre, N, w->K, w->OC, m->dt, m->s);
    for (int rows; (rows = rows_to_repeat(m, &repeat, N)) > 0;)
        k->matmul_backward_input(m->discarded, dout, w->w, pre, rows, w->K, w->OC, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
    if (w->kept) k->scatter_columns(dx, computed, w->source, w->fill, N, w->width, w->K, m->dt, m->s);
}

void linear_backward(const Model* m, LinearId id, int l, void* dx, const void* dout, const void* x, const void* pre,
                     int N) {
    Linear w = linear_of(m, id, l);
    if (w.OC == 0) {
        m->k->zero(dx, (size_t)N * (size_t)w.width * dtype_bytes(m->dt), m->s);
        return;
    }
    backward_weight(m, &w, dout, x, N);
    if (w.width > 0) backward_input(m, &w, dx, dout, pre, N);
}
