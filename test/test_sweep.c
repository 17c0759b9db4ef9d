// test_sweep.c - training at many sizes in one process: the head shapes of all presets, rows of 4096 to 131072 tokens,
// of one document, two or forty, by each kind of attention there is. A case is a line of a table:
//
//   - one training pass of a model of one layer, whose activations begin as NaN: loss, norm and hash of the gradients
//     are finite; another pass, in the memory that the first one left, has the same loss and hash; another kind of
//     attention the same within what bf16 rounds;
//   - attention alone, forward and backward, in closed form and against plain kernels: test/sweep_attention.h; of many
//     documents 7 tokens fewer than there is room for.
//
// Kinds are on a GPU our own kernels and cuDNN's, on the CPU its instruction sets. Shapes come from the table of
// presets. On a GPU models are as wide as the preset. Elsewhere they are small, with as many heads as tell groups from
// none, rows are short, and five documents stand for forty. Sizes rise, so that what is cheap comes first. After
// SWEEP_SECONDS (100) nothing new begins, nor what would take until then; it is counted, and printed. SWEEP_SIZES="N
// ..." asks for other rows, N:CONTEXT for shorter documents in them.
#include <unistd.h>

#include "plan/options/read.h"
#include "run/core.h"
#include "test/sweep_attention.h"

// ---- sizes, documents, kinds

static int is_gpu;  // not emulated

// 16384 tokens of documents of at most 8192: with 16 heads 2^31 scores, as one document of 8192 has with 32 heads.
static const char gpu_sizes[] = "4096 8192 12288 16384:8192 16384 24576 32768 65536 131072";
static const char small_sizes[] = "96 128 257";

typedef struct Size {
    int N, context;
} Size;

// Reads N or N:CONTEXT. 0 at the end.
static int next_size(const char** text, Size* size) {
    char* end;
    size->N = size->context = (int)strtol(*text, &end, 10);
    if (*end == ':') size->context = (int)strtol(end + 1, &end, 10);
    if (size->N < 1 || size->context < 1 || (*end && *end != ' ')) {
        if (**text) die("SWEEP_SIZES: expected N or N:CONTEXT with spaces between, found \"%s\"", *text);
        return 0;
    }
    *text = *end ? end + 1 : end;
    return 1;
}

enum { MOST_KINDS = CPU_ISAS + 1 };
enum { CUTS = 3 };  // ways to cut a row

// Documents of a row, the cheapest way first.
static int documents_of(int cut) { return cut > 0 ? 3 - cut : is_gpu ? 40 : 5; }

// n documents of uneven lengths, of 1 token at least, that are N tokens together; even ones where one would be longer
// than the context. 0: these are, too.
static int cut_row(SweepRow* row, Size size, int n) {
    double weight[MOST_CUTS + 1] = {0};
    int longest = 0;
    *row = (SweepRow){.N = size.N, .n_docs = n};
    for (int b = 0; b < n; b++) weight[b + 1] = weight[b] + 0.01 + pow(random_uniform(7, (uint64_t)(97 * n + b)), 3);
    for (int b = 0; b <= n; b++) row->cu[b] = b + (int)((size.N - n) * (weight[b] / weight[n]));
    for (int b = 0; b < n; b++) longest = MAX(longest, row->cu[b + 1] - row->cu[b]);
    for (int b = 0; b <= n && longest > size.context; b++) row->cu[b] = (int)((int64_t)size.N * b / n);
    return CEIL_DIV(size.N, n) <= size.context;
}

typedef struct Kind {
    const char* name;
    const Kernels* k;
    AttentionKernels attention;
    char why_not[ERR_BYTES];  // the last reason that was printed
} Kind;

static Kind kinds[MOST_KINDS];
static int n_kinds;

// The first is what others are compared with.
static void find_kinds(void) {
    const Kernels* tables[CPU_ISAS];
    int n = tested_tables(tables);
    for (int i = 0; i < n; i++) {
        const char* set = strrchr(tables[i]->name, ' ');
        kinds[n_kinds++] = (Kind){TESTS_DEVICE || !set ? "own" : set + 1, tables[i], ATTENTION_OWN, ""};
    }
    if (TESTS_DEVICE && n) kinds[n_kinds++] = (Kind){"cudnn", tables[0], ATTENTION_CUDNN, ""};
    if (TESTS_DEVICE && n) kinds[n_kinds++] = (Kind){"wgmma", tables[0], ATTENTION_WGMMA, ""};
}

// ---- a model for each shape of heads

typedef struct Subject {
    char name[80];
    Config config;
    Shape shape;
    void* weights;
    float* rope;  // NULL: positions are learned
    Inputs* inputs;
    int tried, failed;                 // cases; claims of cases
    double seconds[MOST_KINDS][CUTS];  // of the last case, in units of N squared
} Subject;

enum { MOST_SUBJECTS = 24, IDS = 257 };
static Subject subjects[MOST_SUBJECTS];
static int n_subjects;

static void read_options(Config* config, int n, char** words) {
    Err err;
    if (config_parse(config, n, words, err) || config_settle(config, IDS, err)) die("%s", err);
    config->sample_every = 0;
}

static Heads heads_of(const Shape* s) { return (Heads){s->NH, s->NKV, s->HS}; }

static int same_heads(const Shape* a, const Shape* b) {
    return a->NH == b->NH && a->NKV == b->NKV && a->HS == b->HS &&
           shape_has(a, HAS_QK_NORM) == shape_has(b, HAS_QK_NORM);
}

// The model of a preset in one layer; where that would take too long, two key/value heads with one or two query heads.
static Subject subject_of(char* preset) {
    static Subject s;
    memset(&s, 0, sizeof s);
    char width[16], heads[16], arch[80];
    char* words[] = {"sweep",  "--preset", preset,    "--layers", "1",       "--vocab", "257",
                     "--arch", arch,       "--width", width,      "--heads", heads};
    read_options(&s.config, 7, words);
    const Config* c = &s.config;
    int NKV = MIN(c->kv_heads, 2), NH = NKV * MIN(c->heads / c->kv_heads, 2), HS = c->head_size;
    int is_gpt2 = !strcmp(c->arch, "gpt2");
    snprintf(heads, sizeof heads, "%d", NH);
    snprintf(width, sizeof width, "%d", is_gpt2 ? NH * HS : 64);
    snprintf(arch, sizeof arch, "%s,kv-heads=%d,head-size=%d,hidden=%d", c->arch, NKV, HS, 64);
    if (!is_gpu) config_free(&s.config), read_options(&s.config, COUNT(words), words);
    s.shape = config_shape(&s.config);
    snprintf(s.name, sizeof s.name, "rows_with_%d_heads_on_%d_of_%d%s_like_%s", s.shape.NH, s.shape.NKV, s.shape.HS,
             shape_has(&s.shape, HAS_QK_NORM) ? "_normed" : "", preset);
    return s;
}

// One for each shape of heads that any preset has: presets are the choices of the option.
static void find_subjects(void) {
    static char names[1024];  // where their options stay
    snprintf(names, sizeof names, "%s", option_find("--preset")->value.choices);
    for (char* name = strtok(names, "|"); name; name = strtok(NULL, "|")) {
        Subject s = subject_of(name);
        int known = getenv("TEST_ONLY") && !strstr(s.name, getenv("TEST_ONLY"));
        for (int i = 0; i < n_subjects; i++) known |= same_heads(&s.shape, &subjects[i].shape);
        if (known) config_free(&s.config);
        else if (n_subjects < MOST_SUBJECTS) subjects[n_subjects++] = s;
        else die("presets have more than %d shapes of heads; raise MOST_SUBJECTS", MOST_SUBJECTS);
    }
}

typedef struct InitJob {
    const Shape* shape;
    ParamTensor tensor;
    uint64_t seed;
    float* value;
} InitJob;

enum { INIT_AT_ONCE = 1 << 16 };

static void init_task(const void* p, size_t task, int thread) {
    const InitJob* job = (const InitJob*)p;
    size_t first = task * INIT_AT_ONCE, n = MIN((size_t)INIT_AT_ONCE, job->tensor.elems - first);
    (void)thread;
    shape_init_param(job->shape, &job->tensor, job->seed, first, n, job->value + first);
}

// Weights as at the start of a run, in bf16, and the table of rotary positions.
static void open_subject(Subject* s, const Kernels* k) {
    size_t elems = shape_param_elems(&s->shape), table = (size_t)s->shape.context * (size_t)s->shape.HS;
    float* value = (float*)malloc(MAX(elems, table) * sizeof *value);
    s->weights = k->alloc(elems * sizeof(bf16));
    if (!value || !s->weights) die("no memory for %zu weights", elems);
    team_open((int)sysconf(_SC_NPROCESSORS_ONLN));
    for (int i = 0; i < shape_tensors(&s->shape); i++) {
        ParamTensor t = shape_tensor(&s->shape, i);
        InitJob job = {&s->shape, t, (uint64_t)s->config.seed, value};
        team_run(init_task, &job, CEIL_DIV(t.elems, (size_t)INIT_AT_ONCE), 1, 0);
        bf16_narrow_in_place(value, t.elems);
        k->upload((bf16*)s->weights + t.offset, value, t.elems * sizeof(bf16), NULL);
        k->synchronize(NULL);
    }
    if (!shape_has(&s->shape, HAS_POSITIONS)) {
        shape_rope(&s->shape, value);
        s->rope = (float*)to_device(k, value, table * sizeof *value);
    }
    s->inputs = make_inputs(k, heads_of(&s->shape));
    free(value);
}

static void close_subject(Subject* s, const Kernels* k) {
    k->free_memory(s->weights), k->free_memory(s->rope);
    free_inputs(k, s->inputs);
    config_free(&s->config);
}

// ---- gradients, all on the device

enum { SLICE = 1 << 20, MOST_PARTS = 32 };
static float* gradients[CUTS + 1];  // of the first kind, by the documents of the row, and of another pass
static double* sums;                // 2 of each slice, or of each part

static void open_gradients(const Kernels* k) {
    size_t most = 0;
    for (int i = 0; i < n_subjects; i++) most = MAX(most, shape_param_elems(&subjects[i].shape));
    for (int i = 0; i < CUTS + 1; i++) gradients[i] = (float*)k->alloc(most * sizeof(float));
    sums = (double*)k->alloc((2 * (most / SLICE + 1) + 2 * MOST_PARTS) * sizeof *sums);
    for (int i = 0; i < CUTS + 1; i++)
        if (!gradients[i] || !sums) die("no memory for gradients of %zu elements", most);
}

// Of every slice the sum and the sum of squares, in double and in a fixed order: their hash changes where a bit of the
// gradients does that these doubles have room for.
static void sum_slices(const Kernels* k, const float* g, size_t n, double* norm, uint64_t* hash) {
    size_t slices = CEIL_DIV(n, (size_t)SLICE), bytes = 2 * slices * sizeof(double);
    double* host = (double*)malloc(bytes);
    double squares = 0;
    k->clear(sums, bytes, NULL);
    for (size_t i = 0; i < slices; i++) {
        size_t at = i * SLICE, some = MIN((size_t)SLICE, n - at);
        k->add_sum(sums + 2 * i, g + at, some, NULL);
        k->sum_of_squares(sums + 2 * i + 1, g + at, some, NULL);
    }
    k->download(host, sums, bytes, NULL);
    for (size_t i = 0; i < slices; i++) squares += host[2 * i + 1];
    *norm = sqrt(squares);
    *hash = hash_bytes(host, bytes, 0);
    free(host);
}

// A tensor; queries, keys and values each for themselves.
typedef struct Part {
    size_t at, n;
} Part;

// The bias of keys has no gradient: what is there is rounding.
static int parts_of(const Shape* shape, Part* parts) {
    int n = 0;
    for (int i = 0; i < shape_tensors(shape); i++) {
        ParamTensor t = shape_tensor(shape, i);
        Runs runs = {1, {1}};
        if (t.id == QKVW || t.id == QKVB) runs = shape_runs(shape, QKV_OUTPUTS);
        size_t unit = t.elems / (size_t)runs_sum(runs), at = t.offset;
        for (int r = 0; r < runs.n; at += (size_t)runs.size[r++] * unit)
            if (t.elems && !(t.id == QKVB && r == 1)) parts[n++] = (Part){at, (size_t)runs.size[r] * unit};
    }
    return n;
}

// `other` are the gradients of the opposite loss: adds `g` to them. ||g + other|| / ||g||, of all and of the part where
// it is largest.
static void compare_gradients(const Kernels* k, const Shape* shape, float* other, const float* g, double* all,
                              double* worst) {
    Part parts[MOST_PARTS];
    int n = parts_of(shape, parts);
    double host[2 * MOST_PARTS], total[2] = {0, 0};
    k->add(other, other, g, shape_param_elems(shape), DT_F32, NULL);
    k->clear(sums, sizeof host, NULL);
    for (int i = 0; i < n; i++) {
        k->sum_of_squares(sums + 2 * i, other + parts[i].at, parts[i].n, NULL);
        k->sum_of_squares(sums + 2 * i + 1, g + parts[i].at, parts[i].n, NULL);
    }
    k->download(host, sums, sizeof host, NULL);
    *worst = 0;
    for (int i = 0; i < n; i++) {
        worse(worst, sqrt(host[2 * i] / host[2 * i + 1]));
        total[0] += host[2 * i], total[1] += host[2 * i + 1];
    }
    *all = sqrt(total[0] / total[1]);
}

// ---- a case: a row of a subject by a kind

typedef struct Bench {  // what a subject, a size and a kind have in common
    Subject* subject;
    Kind* kind;
    Size size;
    Model model;
    LayerLayout layer;
    int* ids;     // tokens, positions, targets (N) each, cu (MOST_CUTS + 1)
    char* block;  // activations; what attention alone needs
    size_t bytes;
} Bench;

static uint64_t rows;  // so far

// Every byte is that of a NaN, in bf16 and in fp32.
static void fill_with_nan(const Kernels* k, char* memory, size_t bytes) {
    static char nan_bytes[1 << 20];
    size_t filled = 0;
    memset(nan_bytes, 0xff, sizeof nan_bytes);
    for (; filled < MIN(bytes, (size_t)64 << 20); filled += sizeof nan_bytes)
        k->upload(memory + filled, nan_bytes, MIN(sizeof nan_bytes, bytes - filled), NULL);
    while (filled < bytes) {
        size_t more = MIN(filled, bytes - filled);
        k->add(memory + filled, memory, memory, more / sizeof(bf16), DT_BF16, NULL);
        filled += more;
    }
}

static Row row_of(const Bench* b, const SweepRow* cut) {
    size_t N = (size_t)cut->N;
    int n_ids = 3 * cut->N + MOST_CUTS + 1, *ids = (int*)calloc((size_t)n_ids, sizeof *ids);
    if (!ids) die("no memory for %d ids", n_ids);
    for (int n = 0, d = 0; n < cut->N; n++) {
        while (n >= cut->cu[d + 1]) d++;
        ids[n] = (int)(hash64((uint64_t)n) % IDS);
        ids[N + (size_t)n] = (n - cut->cu[d]) % b->subject->shape.context;
        ids[2 * N + (size_t)n] = n + 1 < cut->cu[d + 1] ? (int)(hash64((uint64_t)n + 1) % IDS) : -1;
    }
    memcpy(ids + 3 * N, cut->cu, sizeof cut->cu);
    b->kind->k->upload(b->ids, ids, (size_t)n_ids * sizeof *ids, NULL);
    b->kind->k->synchronize(NULL);
    free(ids);
    return (Row){.N = cut->N,
                 .n = cut->N,
                 .own = cut->N,
                 .n_docs = cut->n_docs,
                 .number = ++rows,
                 .qkv = QKV,
                 .tokens = b->ids,
                 .positions = b->ids + N,
                 .targets = b->ids + 2 * N,
                 .cu = b->ids + 3 * N};
}

typedef struct TrainingPass {
    double loss, norm, seconds;
    uint64_t hash;
} TrainingPass;

// Gradients of sign * mean loss.
static TrainingPass train(Bench* b, const SweepRow* cut, float sign, float* g) {
    Model* m = &b->model;
    const Kernels* k = m->k;
    size_t elems = shape_param_elems(&m->shape);
    TrainingPass p;
    Row row = row_of(b, cut);
    m->array[MODEL_GRADS] = g;
    free(m->param_places);
    model_place_params(m);
    k->clear(g, elems * sizeof *g, NULL);
    k->clear(m->loss_sum, sizeof *m->loss_sum, NULL);
    k->synchronize(NULL);
    double began = now_seconds();
    model_train(m, &row, sign / (float)cut->N);
    k->add_sum(m->loss_sum, (const float*)model_act(m, LOSSES, 0), (size_t)cut->N, NULL);
    k->download(&p.loss, m->loss_sum, sizeof p.loss, NULL);
    p.seconds = now_seconds() - began;
    p.loss /= cut->N;
    sum_slices(k, g, elems, &p.norm, &p.hash);
    return p;
}

// A failed claim of the subject, printed behind the case.
__attribute__((format(printf, 3, 4))) static void expect_that(Subject* s, int holds, const char* format, ...) {
    va_list args;
    if (holds) return;
    s->failed++;
    printf(" FAILED: ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

// Kinds round the output of attention, probabilities and dS each in their way, and one that is off by a rounding makes
// what follows round anew: about ten activations forward and as many gradients, each by 2^-9 / sqrt(3), of which a
// difference has two: sqrt(40 / 3) 2^-9 = 2^-7 of the gradients. Twice that is allowed, and four times of one tensor.
static const double GRADIENT_TOLERANCE = 1.0 / 64, PART_TOLERANCE = 1.0 / 32, LOSS_TOLERANCE = 2e-3;

static void compare_with_first(Bench* b, int cut, const TrainingPass* p, double first_loss) {
    Subject* s = b->subject;
    double all, part;
    compare_gradients(b->kind->k, &s->shape, gradients[CUTS], gradients[cut], &all, &part);
    printf(" %8.1e %8.1e", all, part);
    expect_that(s, fabs(p->loss - first_loss) <= LOSS_TOLERANCE, "loss %.9g by %s", first_loss, kinds[0].name);
    expect_that(s, all <= GRADIENT_TOLERANCE, "gradients differ by %.3g > %.3g", all, GRADIENT_TOLERANCE);
    expect_that(s, part <= PART_TOLERANCE, "a tensor's gradients differ by %.3g > %.3g", part, PART_TOLERANCE);
}

// The last documents lose 7 tokens, or all that they have.
static SweepRow shortened(SweepRow row) {
    row.N = MAX(1, row.N - 7);
    for (int b = 0; b <= row.n_docs; b++) row.cu[b] = MIN(row.cu[b], row.N);
    return row;
}

static void check_alone(Bench* b, const SweepRow* cut) {
    const char* names[] = {"closed form", "plain kernels"};
    Subject* s = b->subject;
    fill_with_nan(b->kind->k, b->block, b->bytes);
    Checked c = check_attention(b->kind->k, s->inputs, cut, b->size.N, b->block, ++rows);
    const Differences* both[] = {&c.closed, &c.plain};
    // The logarithm of a sum of ones, exact in fp32, to a unit of its last place; or through base 2, which cuDNN takes.
    double lse = (b->kind->attention == ATTENTION_CUDNN ? 16 : 4) * 0x1p-24 * fmax(1, log(cut->N));
    printf(" %8.1e %8.1e %8.1e %8.2f", worst_of(c.closed), c.closed.lse, worst_of(c.plain), 1e3 * c.seconds);
    expect_that(s, c.closed.lse <= lse, "lse off by %.3g > %.3g", c.closed.lse, lse);
    for (int i = 0; i < 2; i++)
        expect_that(s, worst_of(*both[i]) <= ATTENTION_TOLERANCE, "%s: out %.2g, dq %.2g, dk %.2g, dv %.2g > %.2g",
                    names[i], both[i]->out, both[i]->dq, both[i]->dk, both[i]->dv, ATTENTION_TOLERANCE);
}

// A pass is run again where that is cheap: on a GPU two or one documents of 131072 tokens take seconds.
static int is_run_again(const SweepRow* cut) { return is_gpu ? cut->N < 131072 || cut->n_docs > 2 : cut->n_docs == 2; }

static void run_case(Bench* b, int i, double* first_loss) {
    Subject* s = b->subject;
    int is_first = b->kind == kinds;
    SweepRow cut;
    if (!cut_row(&cut, b->size, documents_of(i))) return;
    printf("%3d/%-2d %3d%s %7d:%-6d %3d %-10s", s->shape.NH, s->shape.NKV, s->shape.HS,
           shape_has(&s->shape, HAS_QK_NORM) ? "n" : " ", b->size.N, b->size.context, cut.n_docs, b->kind->name);
    s->tried++;
    fflush(stdout);  // a case that ends the program is the last one that was printed
    fill_with_nan(b->kind->k, b->block, b->bytes);
    TrainingPass p = train(b, &cut, is_first ? 1 : -1, gradients[is_first ? i : CUTS]);
    printf(" %8.2f %9.6f %9.3e %08x", 1e3 * p.seconds, p.loss, p.norm, (unsigned)p.hash);
    expect_that(s, isfinite(p.loss) && isfinite(p.norm) && p.norm > 0, "not finite, or no gradient");
    if (is_first) {
        *first_loss = p.loss;
        printf(" %17s", is_run_again(&cut) ? "twice" : "once");
        if (is_run_again(&cut)) {
            TrainingPass again = train(b, &cut, 1, gradients[CUTS]);
            expect_that(s, again.hash == p.hash && again.loss == p.loss, "again: loss %.9g, hash %08x", again.loss,
                        (unsigned)again.hash);
        }
    } else compare_with_first(b, i, &p, *first_loss);
    if (cut.n_docs > 2) cut = shortened(cut);
    check_alone(b, &cut);
    printf("\n");
    fflush(stdout);
}

// ---- a bench

static ModelNeeds needs_of(const Bench* b) {
    const Subject* s = b->subject;
    ModelNeeds needs = model_needs(b->kind->k, &s->shape, DT_BF16, &b->layer, &s->config, 1, b->size.N);
    needs.limits.N = b->size.N;
    needs.limits.context = b->size.context;
    needs.limits.attention = b->kind->attention;
    return needs;
}

// A reason is printed when it is a new one.
static int leave(Kind* kind, const Bench* b, const char* why) {
    if (strcmp(why, kind->why_not) != 0)
        printf("skipped: %d/%d heads of %d, %d:%d tokens, %s, and others like it: %s\n", b->subject->shape.NH,
               b->subject->shape.NKV, b->subject->shape.HS, b->size.N, b->size.context, kind->name, why);
    snprintf(kind->why_not, sizeof kind->why_not, "%s", why);
    return -1;
}

// 0, or -1 where a reason was printed.
static int open_bench(Bench* b, Subject* s, Kind* kind, Size size) {
    const Kernels* k = kind->k;
    Err err;
    *b = (Bench){.subject = s, .kind = kind, .size = size};
    ModelNeeds needs = needs_of(b);
    Model* m = &b->model;
    size_t acts = shape_activations(&needs.shape, &needs.acts, NULL), ids = (size_t)(3 * size.N + MOST_CUTS + 1);
    b->bytes = MAX(acts, attention_row(heads_of(&s->shape), size.N, NULL).bytes);
    if (k->open(&needs.limits, err)) return leave(kind, b, err);
    size_t margin = is_gpu ? (size_t)1 << 30 : 0, free_bytes = k->memory_available();
    if (b->bytes + margin <= free_bytes) b->block = (char*)k->alloc(b->bytes);
    b->ids = (int*)k->alloc(ids * sizeof *b->ids);
    m->loss_sum = (double*)k->alloc(64);
    if (!b->block || !b->ids || !m->loss_sum) {
        snprintf(err, sizeof err, "it takes %zu MiB of memory, %zu are free", b->bytes >> 20, free_bytes >> 20);
        return leave(kind, b, err);
    }
    m->k = k, m->dt = DT_BF16, m->shape = m->whole = s->shape, m->acts = b->block, m->rope = s->rope;
    m->grad_norm2 = m->loss_sum + 1;
    m->layers = &b->layer;
    m->array[MODEL_WEIGHTS] = s->weights;
    model_place_activations(m, &needs);
    return 0;
}

static void close_bench(Bench* b) {
    const Kernels* k = b->kind->k;
    k->free_memory(b->block), k->free_memory(b->ids), k->free_memory(b->model.loss_sum);
    free(b->model.param_places), free(b->model.act_places);
    k->close();
}

// ---- all of them

static double began, most_seconds;
static int left_out;

// Whether a case that takes as long for its size as the last one did ends in time.
static int is_in_time(const Subject* s, Size size, int kind, int cut) {
    double squares = (double)size.N * size.N;
    return now_seconds() - began + s->seconds[kind][cut] * squares <= most_seconds;
}

static void run_cases(Subject* s, Size size) {
    double first_loss[CUTS];
    int done[CUTS] = {0};
    for (int i = 0; i < n_kinds; i++) {
        Bench b;
        int opened = 0;  // -1: it cannot be
        for (int cut = 0; cut < CUTS && opened >= 0; cut++) {
            if (!is_in_time(s, size, i, cut) || (i > 0 && !done[cut])) {
                left_out++;
                continue;
            }
            if (!opened) opened = open_bench(&b, s, &kinds[i], size) ? -1 : 1;
            if (opened < 0) break;
            double start = now_seconds();
            run_case(&b, cut, &first_loss[cut]);
            done[cut] = 1;
            s->seconds[i][cut] = (now_seconds() - start) / ((double)size.N * size.N);
        }
        if (opened) close_bench(&b);
    }
}

static void sweep(void) {
    const char* sizes = getenv("SWEEP_SIZES") ? getenv("SWEEP_SIZES") : is_gpu ? gpu_sizes : small_sizes;
    Size size;
    printf(
        "a training pass: ms, mean loss, norm and hash of the gradients; how much they and the worst tensor differ "
        "from the first kind's\nattention alone: how far from the closed form, lse from its own, and how far from "
        "plain kernels; ms\n");
    printf("%6s %4s %14s %3s %-10s %8s %9s %9s %8s %8s %8s %8s %8s %8s %8s\n", "heads", "size", "tokens:context", "of",
           "kind", "pass ms", "loss", "norm", "hash", "differ", "worst", "closed", "lse", "plain", "ms");
    while (next_size(&sizes, &size)) {
        int before = left_out;
        for (int i = 0; i < n_subjects; i++) run_cases(&subjects[i], size);
        if (left_out > before)
            printf("left out: %d cases of %d:%d tokens, lest this take more than %g s (SWEEP_SECONDS)\n",
                   left_out - before, size.N, size.context, most_seconds);
    }
}

static void no_case_has_failed(const Subject* s) {
    CHECK(n_kinds > 0);  // find_kinds has said why
    CHECK(s->failed == 0);
    if (!s->tried) SKIP("all of its cases were left out");
}

int main(void) {
    const char* seconds = getenv("SWEEP_SECONDS");
#ifdef TEST_DEVICE
    is_gpu = !strcmp(TEST_DEVICE, "cuda");
#endif
    // Matmuls take the first algorithm that is offered: to time others for each size, and keep them, would take longer.
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    began = now_seconds(), most_seconds = seconds ? atof(seconds) : 100;
    find_kinds();
    find_subjects();
    if (n_kinds && n_subjects) {
        const Kernels* k = kinds[0].k;
        for (int i = 0; i < n_subjects; i++) open_subject(&subjects[i], k);
        open_gradients(k);
        printf("%s: %d shapes of heads, opened in %.1f s\n", k->name, n_subjects, now_seconds() - began);
        sweep();
        for (int i = 0; i < n_subjects; i++) close_subject(&subjects[i], k);
        for (int i = 0; i < CUTS + 1; i++) k->free_memory(gradients[i]);
        k->free_memory(sums);
    }
    for (int i = 0; i < n_subjects; i++) RUN_AS(subjects[i].name, no_case_has_failed(&subjects[i]));
    printf("%.1f s\n", now_seconds() - began);
    return test_done();
}
