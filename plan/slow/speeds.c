// speeds.c - the speed of every rank; speeds.h has the formulas and reasons.
//
// The micro-batch's own cost is subtracted before dividing, because the planner adds it at any speed. So whatever
// really slows down, the found speed makes the planner predict what was measured.
#include "plan/slow/speeds.h"

#include <math.h>
#include <stdlib.h>

#include "plan/base/sort.h"
#include "plan/base/words.h"

static const double jump_above = 1.3;      // times the usual, or below its inverse
static const double band = 1.1;            // around 1 and around the set speed
static const double forgiveness = 1.5;     // a refresh
static const double least_told = 1.0 / 8;  // of a rank's time that must be work, or it says nothing
static const double least_speed = 1.0 / 64, most_speed = 64;
enum { FIRST_WAIT = 100, LONGEST_WAIT = 1 << 20, IN_FLIGHT = 2 };

int speeds_start(Speeds* x, int ranks, Arena* arena) {
    double *speeds = TAKE(arena, double, ranks), *now = TAKE(arena, double, ranks);
    *x = (Speeds){.ranks = ranks, .held = 1, .speeds = speeds, .now = now, .paces = TAKE(arena, RankPace, ranks)};
    if (arena_check(arena, NULL) < 0) return -1;
    for (int r = 0; r < ranks; r++) x->speeds[r] = 1, x->paces[r] = (RankPace){.slowness = 1, .wait = FIRST_WAIT};
    return 0;
}

// ---- small helpers

static double times_off(double a, double b) { return a > b ? a / b : b / a; }

// The mean of the values within 10 % of the median. If half of all ranks are slow, the median alone would be the
// slowest of the fast ranks. Sorts values (n, at least 1) in place. near 0: takes the lower of two middle ones.
static double middle(double* values, int n, double near) {
    sort_doubles(values, (size_t)n);
    double median = values[(n - 1) / 2], upper = values[n / 2], sum = 0;
    if (near > 0 && times_off(upper, near) < times_off(median, near)) median = upper;
    int of = 0;
    for (int i = 0; i < n; i++)
        if (times_off(values[i], median) <= band) sum += values[i], of++;
    return sum / of;
}

static double usual(const RankPace* pace) {
    double values[SPEED_MEMORY];
    memcpy(values, pace->recent, sizeof(double) * (size_t)pace->n);
    sort_doubles(values, (size_t)pace->n);
    return values[(pace->n - 1) / 2];
}

// ---- a step

// The planner counts the rank with most heads (uneven in cost.h); here every rank counts its own.
static double heads_of(const PlanLimits* limits, int ulysses_size, int b) {
    return (double)((int64_t)(b + 1) * limits->kv_heads / ulysses_size - (int64_t)b * limits->kv_heads / ulysses_size);
}

static void expect_micro_batch(CostTerms* of_rank, const MicroBatch* mb, LengthSums sums, const Setting* setting) {
    const Cost* cost = &setting->cost;
    for (int cp_rank = 0; cp_rank < mb->cp_size; cp_rank++) {
        CostTerms* t = &of_rank[mb->first_rank + cp_rank];
        double heads =
            heads_of(&setting->limits, mb->ulysses_size, cp_rank % mb->ulysses_size) / setting->limits.kv_heads;
        t->quadratic += cost->quadratic * sums.squares * heads * mb->ulysses_size / mb->cp_size;
        t->per_token += cost->per_token * sums.tokens / mb->cp_size;
        t->micro_batch += cost->micro_batch;
    }
}

void speeds_expect(CostTerms* of_rank, const Plan* plan, const int* lengths, const Setting* setting) {
    for (int r = 0; r < setting->limits.ranks; r++) of_rank[r] = (CostTerms){0};
    for (int i = 0; i < plan->n_micro_batches; i++)
        expect_micro_batch(of_rank, &plan->micro_batches[i], micro_batch_sums(plan, &plan->micro_batches[i], lengths),
                           setting);
}

static double work_of(const Speeds* x, int r) {
    return x->paces[r].expected.quadratic + x->paces[r].expected.per_token;
}

static double planned_ms(const Speeds* x, int r) {
    return work_of(x, r) / x->speeds[r] + x->paces[r].expected.micro_batch;
}

// The factor c of the step; 0: there are no two ranks to compare.
static double common_factor(Speeds* x) {
    int n = 0;
    for (int r = 0; r < x->ranks; r++)
        if (x->paces[r].measured > 0) x->now[n++] = x->paces[r].measured / planned_ms(x, r);
    return n > 1 ? middle(x->now, n, x->common) : 0;
}

// Remembers a rank's slowness. Returns 1 if the rank has changed for good.
static int remember(RankPace* pace, double slowness) {
    double before = pace->n ? usual(pace) : slowness;
    int jump = times_off(slowness, before) <= jump_above ? 0 : slowness > before ? 1 : -1;
    int changed = jump != 0 && jump == pace->jump;
    if (changed) pace->recent[0] = pace->recent[pace->n - 1], pace->n = 1;
    pace->jump = jump;
    if (pace->n == SPEED_MEMORY) memmove(pace->recent, pace->recent + 1, sizeof(double) * --pace->n);
    pace->recent[pace->n++] = slowness;
    pace->idle = 0;
    pace->told = 1;
    return changed;
}

// Notes which ranks took the predicted time, up to the factor c. If some did not and the factor is new, it is not clear
// which did. c 0: nothing can be compared.
static void compare(Speeds* x, double c) {
    int all = 1, clear = c == 0 || x->common == 0 || times_off(c, x->common) <= jump_above;
    for (int r = 0; r < x->ranks; r++) {
        RankPace* pace = &x->paces[r];
        int is = c > 0 && pace->measured > 0;
        int as = pace->as_planned = is && times_off(pace->measured, c * planned_ms(x, r)) <= jump_above;
        all &= as || !is;
    }
    if (c > 0 && (clear || all)) x->common = c;
    for (int r = 0; r < x->ranks; r++) x->paces[r].as_planned &= clear || all;
    x->held = all && x->in_flight == 0;
    x->in_flight -= x->in_flight > 0;
}

void speeds_learn(Speeds* x, const CostTerms* expected, const double* compute_ms) {
    for (int r = 0; r < x->ranks; r++) {
        x->paces[r].expected = expected[r];
        int is = work_of(x, r) > 0 && compute_ms[r] > 0 && isfinite(compute_ms[r]);
        x->paces[r].measured = is ? compute_ms[r] : 0;
    }
    double c = common_factor(x);
    compare(x, c);
    if (c == 0) return;
    x->steps++;
    for (int r = 0; r < x->ranks; r++) {
        RankPace* pace = &x->paces[r];
        double ms = pace->measured / c, work = ms - pace->expected.micro_batch;
        if (ms > 0 && work >= least_told * ms)
            x->urgent |= remember(pace, work / work_of(x, r)) || (pace->on_trial && !pace->as_planned);
        else pace->idle += pace->idle < LONGEST_WAIT;
    }
}

// The pupil's count is 0 before every rank, because a Calibration that has seen nothing takes no step for an outlier.
void speeds_teach(const Speeds* x, Calibration* calibration) {
    Calibration pupil = *calibration;
    for (int r = 0; r < x->ranks; r++) {
        const RankPace* pace = &x->paces[r];
        const CostTerms* t = &pace->expected;
        double ms[CALIBRATION_TERMS] = {t->quadratic / x->speeds[r], t->per_token / x->speeds[r], 0, t->micro_batch, 0};
        if (!pace->as_planned) continue;
        for (int i = 0; i < CALIBRATION_TERMS; i++) ms[i] /= calibration->theta[i];
        pupil.n = pupil.in_a_row = 0;
        calibration_learn(&pupil, ms, pace->measured);
    }
    memcpy(calibration->theta, pupil.theta, sizeof calibration->theta);
    memcpy(calibration->P, pupil.P, sizeof calibration->P);
}

// ---- a refresh

// Sets a rank's slowness from its last steps; a rank that had no work for long gets a trial.
static void settle_slowness(Speeds* x, int r, double usual_one) {
    RankPace* pace = &x->paces[r];
    if (pace->told) {
        double found = usual(pace), off = found / pace->slowness;
        if (pace->on_trial)
            pace->wait = off < band ? FIRST_WAIT : (int)MIN(MAX(2 * pace->wait, FIRST_WAIT * off), LONGEST_WAIT);
        pace->slowness = found;
        pace->told = pace->on_trial = 0;
    } else if (pace->idle > pace->wait && pace->slowness > usual_one) {
        pace->slowness = MAX(pace->slowness / forgiveness, usual_one);
        pace->n = pace->jump = 0;
        pace->on_trial = 1;
    }
}

static double middle_slowness(Speeds* x) {
    for (int r = 0; r < x->ranks; r++) x->now[r] = x->paces[r].slowness;
    return middle(x->now, x->ranks, 1);
}

// Divides all slownesses by `factor`: they now count from a median rank that is so many times slower.
static void move_origin(Speeds* x, double factor) {
    for (int r = 0; r < x->ranks; r++) {
        RankPace* pace = &x->paces[r];
        pace->slowness /= factor;
        for (int i = 0; i < pace->n; i++) pace->recent[i] /= factor;
    }
}

// Rounds a speed to 6 significant bits, within its bounds.
static double quantise(double speed) {
    int exponent;
    double fraction = frexp(MIN(MAX(speed, least_speed), most_speed), &exponent);
    return ldexp(floor(64 * fraction + 0.5) / 64, exponent);
}

// Sets a rank's speed unless it is close to the old one. Returns 1 if it changes.
static int set_speed(Speeds* x, int r, double speed) {
    RankPace* pace = &x->paces[r];
    double width = pace->n ? 1 + (band - 1) * sqrt((double)SPEED_MEMORY / pace->n) : band, before = x->speeds[r];
    int more_is_known = before != 1 && pace->n > pace->behind;
    if (times_off(speed, before) <= width && !more_is_known) return 0;
    x->speeds[r] = times_off(speed, 1) <= width ? 1 : quantise(speed);
    pace->behind = pace->n;
    return x->speeds[r] != before;
}

int speeds_refresh(Speeds* x) {
    int changed = 0;
    double usual_one = middle_slowness(x);
    for (int r = 0; r < x->ranks; r++) settle_slowness(x, r, usual_one);
    usual_one = middle_slowness(x);
    if (times_off(usual_one, 1) > band) move_origin(x, usual_one);
    for (int r = 0; r < x->ranks; r++) changed |= set_speed(x, r, 1 / x->paces[r].slowness);
    x->urgent = 0;
    if (changed) x->in_flight = IN_FLIGHT;
    return changed;
}

// ---- slow ranks on purpose
//
// With F_r(t) the pieces that name rank r and hold step t:  slowness = product over F_r(t) of x, apart for the pieces
// that say `whole` and those that do not. Wang et al. (2024, arXiv 2401.11469) also make stragglers by a factor for a
// rank and an interval of steps.
enum { RANK, X, FROM, TO, WHOLE, N_KEYS };
#define AT(field) offsetof(Straggler, field)
static const Field keys[N_KEYS] = {
    [RANK] = {"rank", INT, AT(rank), 0, 0, NULL},  // most: depends on the number of ranks
    [X] = {"x", REAL, AT(x), 1, 1000, NULL},
    [FROM] = {"from", INT64, AT(from), 1, 1e12, NULL},  // steps as --steps
    [TO] = {"to", INT64, AT(to), 1, 1e12, NULL},
    [WHOLE] = {"whole", FLAG, AT(whole), 0, 1, NULL},
};

static int read_key(Straggler* s, const Words* piece, Word name, int ranks, unsigned* given) {
    char wanted[WANTED];
    Word value = name;
    int has_value = word_cut(&name, '=', &value);
    const Field* known = field_find(keys, N_KEYS, name);
    if (!known) return words_refuse(piece, name, "expected rank=N, x=F, from=N, to=N or whole");
    Field key = *known;
    if (known == &keys[RANK]) key.most = ranks - 1;
    if (has_value != (key.type != FLAG))
        return words_refuse(piece, name, "expected %s%s", key.name, has_value ? " without a value" : "= and a number");
    if (*given & 1u << (known - keys)) return words_refuse(piece, name, "expected %s once", key.name);
    *given |= 1u << (known - keys);
    return field_set(&key, s, value, wanted) ? words_refuse(piece, value, "expected %s", wanted) : 0;
}

static int read_piece(Straggler* s, Words* piece, int ranks) {
    unsigned given = 0;
    Word word;
    *s = (Straggler){.from = 1, .to = INT64_MAX};
    while (words_next(piece, ',', &word))
        if (read_key(s, piece, word, ranks, &given)) return -1;
    if (~given & (1u << RANK | 1u << X)) return words_refuse(piece, (Word){NULL, 0}, "expected both rank= and x=");
    if (s->to >= s->from) return 0;
    return words_refuse(piece, (Word){NULL, 0}, "expected to= of at least from=");
}

int straggle_parse(Straggler* list, int* n, const char* spec, int ranks, Err err) {
    char why[ERR_BYTES];
    Words text = words_of(spec ? spec : "", spec ? strlen(spec) : 0, why), piece;
    int found = 0;
    *n = 0;
    while (words_statement(&text, &piece)) {
        int failed = found == MOST_STRAGGLERS
                         ? words_refuse(&piece, piece.all, "expected at most %d pieces", MOST_STRAGGLERS)
                         : read_piece(&list[found++], &piece, ranks);
        if (failed) return fail(err, "--straggle: %s; example: \"rank=0,x=4,from=20,to=80,whole\"", why);
    }
    *n = found;
    return 0;
}

Slowness straggle_at(const Straggler* list, int n, int rank, int64_t step) {
    Slowness slow = {1, 1};
    for (int i = 0; i < n; i++) {
        const Straggler* s = &list[i];
        if (s->rank != rank || step < s->from || step > s->to) continue;
        if (s->whole) slow.whole *= s->x;
        else slow.linear *= s->x;
    }
    return slow;
}
