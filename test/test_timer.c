// test_timer.c - claims about kernels/timer.h: the time of a step is all there, each piece under its kind; the drag of
// a straggler stretches what it computes and nothing else; and what the wall's clock hides, the timers tell.
//
// Most claims run in a time of their own: a rank has a host clock that only moves when it is told to, and a stream that
// may be behind. Sums of such times differ from the expected ones by rounding alone: of n additions of at most `whole`,
// n whole 2^-53, which NEAR covers for all of these.
#include "kernels/table/open.h"
#include "kernels/timer.h"
#include "kernels/virtual/virtual.h"
#include "test/numbers.h"
#include "test/test.h"

static const double NEAR = 1e-9;
static const double TICK = 1e-5;  // what one look at the clock takes: a spin ends at most two of them late

// ---- a rank whose time the test drives

typedef struct Rank {
    Timer timer;
    double now, busy_until;  // of the host; of its stream
    double marks[MOST_EVENTS];
    int events, looks, synchronized;
    double seconds[N_TIMES];
} Rank;

static Rank own, *at = &own;

static double look(void) {
    at->looks++;
    return at->now += TICK;
}

static void record_event(int i, Stream s) {
    (void)s;
    at->events++;
    CHECK(i >= 0 && i < MOST_EVENTS);
    if (i >= 0 && i < MOST_EVENTS) at->marks[i] = MAX(at->now, at->busy_until);
}

static void read_events(double* seconds, int n) { memcpy(seconds, at->marks, (size_t)n * sizeof *seconds); }

static void synchronize(Stream s) {
    (void)s;
    at->synchronized++;
    at->now = MAX(at->now, at->busy_until);
}

static const Kernels fake = {
    .clock = look, .record_event = record_event, .read_events = read_events, .synchronize = synchronize};

static void on_host(double seconds) { at->now += seconds; }

static void on_stream(double seconds) { at->busy_until = MAX(at->now, at->busy_until) + seconds; }

static Timer* fresh(double drag) {
    memset(&own, 0, sizeof own);
    at->now = 1000;
    at->timer.on = 1;
    timer_slow_down(&at->timer, 1, drag);
    return &at->timer;
}

static void begin(void) { timer_begin(&at->timer, &fake, NULL); }
static TimeKind enter(TimeKind kind) { return timer_enter(&at->timer, kind, NULL); }
static void read_timer(void) { timer_read(&at->timer, at->seconds, NULL); }

// Words of a step: a letter of `letters` enters its kind, a number lets so many seconds pass.
static void play(const char* words, void (*compute)(double)) {
    static const char letters[N_TIMES + 1] = "OLAUW";
    for (char* end; *words; words = end) {
        const char* kind = strchr(letters, *words);
        double seconds = strtod(kind ? words + 1 : words, &end);
        if (kind) enter((TimeKind)(kind - letters)), end = (char*)words + 1;
        else compute(seconds);
        end += strspn(end, " ");
    }
}

static double total(void) {
    double sum = 0;
    for (int kind = 0; kind < N_TIMES; kind++) sum += at->seconds[kind];
    return sum;
}

static double computing(void) { return total() - at->seconds[TIME_WAIT]; }

static double of_segments(void) {
    double sum = 0;
    for (int i = 0; i < at->timer.n_segments; i++) sum += at->timer.segments[i];
    return sum;
}

// ---- kinds and segments

CLAIM(kinds_add_up_to_the_whole) {
    for (uint64_t seed = 1; seed <= 50; seed++) {
        fresh(0);
        begin();
        double expected[N_TIMES] = {0}, start = MAX(at->now, at->busy_until);
        TimeKind kind = TIME_OTHER;
        for (uint64_t i = 0; i < 500; i++) {
            double seconds = random_uniform(seed, 3 * i);
            (seed % 2 ? on_host : on_stream)(seconds);
            expected[kind] += seconds;
            kind = (TimeKind)(hash64(hash64(seed) ^ i) % N_TIMES);
            enter(kind);
        }
        read_timer();
        int wrong = fabs(total() - (MAX(at->now, at->busy_until) - start)) > NEAR + TICK;
        for (int k = 0; k < N_TIMES; k++) wrong += fabs(at->seconds[k] - expected[k]) > NEAR + TICK;
        if (wrong) printf("    seed %d\n", (int)seed);
        CHECK(wrong == 0);
    }
}

// Of steps, each behind the one before: what passes under each kind, in computing's segments, and how many there are.
static const struct Step {
    const char *claim, *words;
    double other, linear, attention, wait;
    int n;
    double segments[4];
} steps[] = {
    // nothing in between is a segment too: the other ranks have one there; and so is what follows the last one
    {"segments_lie_between_waits", "1 L2 W100 LW100 O4A8L16 W100", 5, 18, 8, 300, 4, {3, 0, 28, 0}},
    // a collective within a collective, as entries that are made of others have
    {"a_wait_inside_a_wait_is_one_wait", "A1 W2 W3 W4 A5", 0, 0, 6, 9, 2, {1, 5}},
    {"a_step_forgets_the_one_before", "L1 W10", 0, 1, 0, 10, 2, {1, 0}},
    {"an_empty_step_is_nothing", "", 0, 0, 0, 0, 1, {0}},
};

static void check_step(const struct Step* x) {
    for (int device = 0; device < 2; device++) {
        if (!device) fresh(0);
        begin();
        play(x->words, device ? on_stream : on_host);
        read_timer();
        const double expected[] = {x->other, x->linear, x->attention, 0, x->wait};
        for (int kind = 0; kind < N_TIMES; kind++)
            CHECK_CLOSE(at->seconds[kind], expected[kind], NEAR + 2 * TICK * (kind == TIME_OTHER));
        CHECK(at->timer.n_segments == x->n);
        for (int i = 0; i < x->n; i++)
            CHECK_CLOSE(at->timer.segments[i], x->segments[i], 2 * TICK * (i == 0) + 28 * ldexp(1, -24));
    }
}

CLAIM(entering_the_same_kind_does_nothing) {
    fresh(0);
    begin();
    CHECK(at->events == 1);
    CHECK(enter(TIME_OTHER) == TIME_OTHER && at->events == 1);
    CHECK(enter(TIME_LINEAR) == TIME_OTHER && at->events == 2);
    CHECK(enter(TIME_LINEAR) == TIME_LINEAR && at->events == 2);
    read_timer();
    CHECK(at->events == 3);
}

CLAIM(nobody_marks_outside_of_a_step) {
    fresh(4);
    CHECK(enter(TIME_WAIT) == TIME_OTHER && at->events == 0 && at->looks == 0);
    begin();
    read_timer();
    int events = at->events;
    on_host(7);
    CHECK(enter(TIME_LINEAR) == TIME_OTHER && enter(TIME_WAIT) == TIME_OTHER);
    read_timer();
    CHECK(at->events == events && total() == 0 && at->timer.n_segments == 0);
    begin();
    CHECK(enter(TIME_LINEAR) == TIME_OTHER);
}

CLAIM(a_timer_that_is_off_or_missing_costs_nothing) {
    double seconds[N_TIMES] = {[TIME_WAIT] = 5};
    fresh(4)->on = 0;
    begin();
    CHECK(enter(TIME_LINEAR) == TIME_OTHER && enter(TIME_WAIT) == TIME_OTHER);
    at->seconds[TIME_LINEAR] = 5;
    read_timer();
    CHECK(total() == 0 && at->timer.n_segments == 0);
    timer_begin(NULL, &fake, NULL);
    CHECK(timer_enter(NULL, TIME_WAIT, NULL) == TIME_OTHER);
    timer_read(NULL, seconds, NULL);
    timer_lag(NULL, NULL);
    for (int kind = 0; kind < N_TIMES; kind++) CHECK(seconds[kind] == 0);
    CHECK(at->events == 0 && at->looks == 0 && at->synchronized == 0);
}

CLAIM(a_step_that_nobody_read_is_forgotten) {
    Timer* t = fresh(0);
    begin();
    play("L1", on_host);
    begin();
    on_host(2);
    t->on = 0;  // in the middle of a step: at once
    int events = at->events;
    CHECK(enter(TIME_WAIT) == TIME_OTHER && at->events == events);
    t->on = 1;
    enter(TIME_WAIT);
    read_timer();
    CHECK_CLOSE(at->seconds[TIME_LINEAR], 0, NEAR);
    CHECK_CLOSE(at->seconds[TIME_OTHER], 2, 2 * TICK);
    begin();
    t->on = 0;
    begin();
    t->on = 1;
    events = at->events;
    CHECK(enter(TIME_WAIT) == TIME_OTHER && at->events == events);
}

CLAIM(segments_beyond_their_room_go_into_the_last) {
    fresh(0);
    begin();
    for (int i = 0; i < MOST_SEGMENTS + 500; i++) play("1WL", on_host);
    read_timer();
    CHECK(at->timer.n_segments == MOST_SEGMENTS);
    CHECK(at->timer.segments[MOST_SEGMENTS - 2] == 1 && at->timer.segments[MOST_SEGMENTS - 1] == 501);
    CHECK_CLOSE(of_segments(), computing(), 1e-3);
}

CLAIM(marks_beyond_their_room_are_not_made) {
    for (int last = 0; last < 2; last++) {  // the last mark that there is room for begins either kind
        fresh(0);
        begin();
        if (last) enter(TIME_ATTENTION);
        double start = at->now, late = 0;
        for (int i = 0; i < MOST_EVENTS + 100; i++) {
            play(i % 2 ? "W1" : "L1", on_host);
            late += i >= MOST_EVENTS - 2 - last;
        }
        CHECK(enter(TIME_OTHER) == TIME_WAIT);
        read_timer();
        CHECK(at->events == MOST_EVENTS);
        CHECK_CLOSE(total(), at->now - start, 2 * TICK);
        double even = (MOST_EVENTS + 100 - late) / 2;
        CHECK_CLOSE(at->seconds[last ? TIME_LINEAR : TIME_WAIT], even + late, 1);
        CHECK_CLOSE(at->seconds[last ? TIME_WAIT : TIME_LINEAR], even, 1);
    }
}

// ---- drag

static const double drags[] = {1.5, 2, 4, 8};

// A step of 6 s of other work, 20 s of linears, 10 s of attention and 14 s of waiting.
static void compute_a_step(void (*compute)(double)) {
    begin();
    compute(6);
    for (int layer = 0; layer < 10; layer++) {
        play("L2 A1 W", compute);
        on_stream(1.4);
        play("AO", compute);
    }
    read_timer();
}

// Of everything, or of linears alone. At each of its 32 marks drag may look at the clock a few times.
CLAIM(drag_stretches_what_is_computed_and_nothing_else) {
    for (int device = 0; device < 2; device++)
        for (int d = 0; d < 2 * COUNT(drags); d++) {
            const double drag = drags[d / 2], whole = d % 2 ? drag : 1, slack = 32 * 8 * TICK * drag;
            fresh(whole);
            if (whole == 1) timer_slow_down(&at->timer, drag, 1);
            compute_a_step(device ? on_stream : on_host);
            CHECK_CLOSE(at->seconds[TIME_OTHER], 6 * whole, slack);
            CHECK_CLOSE(at->seconds[TIME_LINEAR], 20 * drag, slack);
            CHECK_CLOSE(at->seconds[TIME_ATTENTION], 10 * whole, slack);
            CHECK_CLOSE(at->seconds[TIME_WAIT], 14, slack);
            CHECK(at->timer.n_segments == 11);
            CHECK_CLOSE(of_segments(), 16 * whole + 20 * drag, slack + 300 * ldexp(1, -24));
        }
}

// A matmul of 3 ms before, in and after linears; virtual time passes without a tick.
CLAIM(virtual_time_is_stretched_without_waiting) {
    static const double linears[] = {1, 1.25, 2, 2.5, 4, 8};
    const Kernels* k = virtual_kernels(NULL);
    VirtualMachine machine = {.token_ms = 9 / 8., .matmul_weights = 64, .layers = 1, .heads = 1};
    static Timer timer = {.on = 1};
    double seconds[N_TIMES];
    virtual_use(&machine);
    for (int i = 0; i < COUNT(linears); i++) {
        double whole = 1 + i, began = virtual_now();
        timer_slow_down(&timer, linears[i], whole);
        timer_begin(&timer, k, NULL);
        for (int kind = TIME_OTHER; kind <= TIME_ATTENTION; kind++) {
            timer_enter(&timer, (TimeKind)kind, NULL);
            k->matmul_forward(NULL, NULL, NULL, NULL, NULL, 8, 8, 8, DT_F32, NULL);
        }
        timer_read(&timer, seconds, NULL);
        CHECK_CLOSE(virtual_now() - began, 3 * whole * (2 + linears[i]), 1e-9);
        CHECK_CLOSE(1e3 * seconds[TIME_LINEAR], 3 * whole * linears[i], 1e-9);
    }
}

// What leaves before the next mark leaves late, and is not stretched a second time.
CLAIM(who_lags_sends_late_and_only_once) {
    for (int device = 0; device < 2; device++) {
        void (*compute)(double) = device ? on_stream : on_host;
        fresh(4);
        begin();
        double start = at->now;
        play("L1", compute);
        timer_lag(&at->timer, NULL);
        CHECK_CLOSE(at->now - start, 4, 40 * TICK);
        CHECK(at->events == 2);
        timer_lag(&at->timer, NULL);
        CHECK_CLOSE(at->now - start, 4, 80 * TICK);
        play("2W", compute);
        on_host(5);
        timer_lag(&at->timer, NULL);
        read_timer();
        CHECK_CLOSE(at->seconds[TIME_LINEAR], 12, 80 * TICK);
        CHECK_CLOSE(at->seconds[TIME_WAIT], 5, 40 * TICK);
    }
}

// Also what follows the last mark that there is room for.
CLAIM(drag_does_not_end_with_the_marks) {
    fresh(3);
    begin();
    double start = at->now;
    for (int i = 0; i < MOST_EVENTS; i++) play("L.01 O.01", on_host);
    read_timer();
    CHECK_CLOSE(at->now - start, 3 * 0.01 * 2 * MOST_EVENTS, 2 * MOST_EVENTS * 8 * TICK);
}

// What was given to the stream before the step began is not of the step.
CLAIM(drag_leaves_the_step_before_alone) {
    fresh(4);
    on_stream(50);
    begin();
    play("L1", on_stream);
    read_timer();
    CHECK_CLOSE(at->seconds[TIME_LINEAR], 4, 40 * TICK);
    CHECK_CLOSE(at->seconds[TIME_OTHER], 0, 40 * TICK);
}

CLAIM(without_drag_nobody_waits_for_the_stream) {
    for (int drag = 0; drag <= 1; drag++) {
        fresh(drag);
        compute_a_step(on_stream);
        CHECK(at->synchronized == 0 && at->looks <= 1);
        CHECK_CLOSE(at->seconds[TIME_LINEAR], 20, NEAR);
        begin();
        timer_lag(&at->timer, NULL);
        CHECK(at->synchronized == 0 && at->looks <= 2);
    }
}

// ---- the CPU's own clock

static char err[ERR_BYTES];

static void spin(const Kernels* k, double seconds) {
    for (double until = k->clock() + seconds; k->clock() < until;) continue;
}

static const Kernels* open_cpu(int oversubscribed) {
    KernelLimits limits = {
        .N = 1, .spread = 1, .C = 1, .OC = 1, .NH = 1, .NKV = 1, .HS = 1, .context = 1, .threads = 1};
    const Kernels* k = kernels_find("cpu", "reference", err);
    limits.oversubscribed = oversubscribed;
    if (!k || k->open(&limits, err)) die("%s", err);
    return k;
}

// 12 ms of linears, 6 ms of attention and 3 ms of other work, in pieces, and 3 ms of an update; 3 ms of waiting. In
// processor time, so that it does not matter who else runs on this machine.
static void compute_on_cpu(Timer* t, const Kernels* k, double seconds[N_TIMES]) {
    static const struct {
        TimeKind kind;
        double seconds;
    } layer[] = {
        {TIME_LINEAR, 2e-3}, {TIME_ATTENTION, 1e-3}, {TIME_WAIT, 0.5e-3}, {TIME_ATTENTION, 0}, {TIME_OTHER, 0.5e-3}};
    timer_begin(t, k, NULL);
    for (int i = 0; i < 6 * COUNT(layer); i++) {
        timer_enter(t, layer[i % COUNT(layer)].kind, NULL);
        spin(k, layer[i % COUNT(layer)].seconds);
    }
    timer_enter(t, TIME_UPDATE, NULL);
    spin(k, 3e-3);
    timer_read(t, seconds, NULL);
}

// A machine now and then counts some milliseconds too many for a thread: the median of several steps has none of them.
CLAIM(injected_slowness_is_measured_within_a_tenth) {
    enum { STEPS = 5 };
    static Timer timer;
    static const double alone[N_TIMES] = {
        [TIME_OTHER] = 3e-3, [TIME_LINEAR] = 12e-3, [TIME_ATTENTION] = 6e-3, [TIME_UPDATE] = 3e-3};
    const Kernels* k = open_cpu(1);
    for (int d = -1; d < COUNT(drags); d++) {
        double x = d < 0 ? 1 : drags[d], seconds[N_TIMES], of_kind[N_TIMES][STEPS];
        timer.on = 1;
        timer_slow_down(&timer, 1, x);
        for (int step = 0; step < STEPS; step++) {
            compute_on_cpu(&timer, k, seconds);
            for (int kind = 0; kind < N_TIMES; kind++) of_kind[kind][step] = seconds[kind];
            CHECK(timer.n_segments == 7);
        }
        for (int kind = 0; kind < N_TIMES; kind++)
            if (kind != TIME_WAIT) CHECK_CLOSE(median_of(of_kind[kind], STEPS) / alone[kind], x, 0.1 * x);
        CHECK_CLOSE(median_of(of_kind[TIME_WAIT], STEPS), 3e-3, 0.3e-3);
    }
    k->close();
}

CLAIM(a_piece_under_the_wall_clock_lasts_at_least_as_long_as_it_must) {
    static Timer timer = {.on = 1};
    double seconds[N_TIMES], start = now_seconds();
    timer_slow_down(&timer, 1, 3);
    const Kernels* k = open_cpu(0);
    compute_on_cpu(&timer, k, seconds);
    double sum = 0;
    for (int kind = 0; kind < N_TIMES; kind++) sum += seconds[kind];
    CHECK(seconds[TIME_LINEAR] >= 36e-3 && seconds[TIME_ATTENTION] >= 18e-3 && seconds[TIME_OTHER] >= 9e-3);
    CHECK(sum <= now_seconds() - start);
    k->close();
}

int main(void) {
    run_claims();
    for (int i = 0; i < COUNT(steps); i++) RUN_AS(steps[i].claim, check_step(&steps[i]));
    return test_done();
}
