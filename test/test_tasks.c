// test_tasks.c - the claims of plan/value/tasks.h: 1F1B by theory, random pipelines through the proof, and broken
// lists.
#include "test/checks.h"
#include "test/test.h"

enum { MOST_STAGES = 6, MOST_ROUNDS = 12 };

typedef struct Made {
    Pipeline p;
    int slots[MOST_STAGES];
    double forward[MOST_STAGES * MOST_ROUNDS], backward[MOST_STAGES * MOST_ROUNDS], message[MOST_ROUNDS];
    Schedule s;
    Arena arena;
    char err[ERR_BYTES];
} Made;

// Stage s has stages - s slots, as 1F1B needs.
static void make(Made* m, int stages, int rounds, int training) {
    memset(m, 0, sizeof *m);
    m->p = (Pipeline){stages, rounds, training, m->slots, m->forward, m->backward, m->message};
    for (int s = 0; s < stages; s++) m->slots[s] = stages - s;
}

static void fill_equal(Made* m, double forward, double backward) {
    for (int i = 0; i < m->p.stages * m->p.rounds; i++) m->forward[i] = forward, m->backward[i] = backward;
}

static int schedule(Made* m) { return schedule_tasks(&m->s, &m->p, &m->arena, m->err); }

static int is_right(Made* m) {
    int wrong = schedule_check(&m->s, &m->p, &m->arena, m->err);
    if (wrong) printf("    %s\n", m->err);
    return !wrong;
}

// "F0 F1 B0 ..." of the passes of a stage.
static const char* passes(const Made* m, int s) {
    static char text[16 * MOST_ROUNDS];
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < m->s.stages[s].n; i++) {
        const Task* t = &m->s.stages[s].tasks[i];
        if (t->kind < TASK_SEND)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%c%d", n ? " " : "", t->backward ? 'B' : 'F', t->round);
    }
    return text;
}

// Equal rounds run 1F1B, one stage its rounds one after another, evaluation forward passes only; a message takes its
// time.
CLAIM(passes_of_equal_rounds_are_those_of_theory) {
    static const struct {
        int stages, rounds, training;
        double backward, message;
        int stage;
        const char* passes;
        double makespan;
    } rows[] = {{4, 6, 1, 2, 0, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5", 27},
                {4, 6, 1, 2, 0, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5", 27},
                {4, 6, 1, 2, 0, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5", 27},
                {1, 3, 1, 2, 0, 0, "F0 B0 F1 B1 F2 B2", 9},
                {1, 3, 0, 0, 0, 0, "F0 F1 F2", 3},
                {3, 4, 0, 0, 0, 1, "F0 F1 F2 F3", 6},
                {2, 1, 1, 2, 0.25, 0, "F0 B0", 6.5}};
    for (int i = 0; i < COUNT(rows); i++) {
        Made m;
        make(&m, rows[i].stages, rows[i].rounds, rows[i].training);
        fill_equal(&m, 1, rows[i].backward);
        for (int r = 0; r < rows[i].rounds; r++) m.message[r] = rows[i].message;
        CHECK(schedule(&m) == 0 && is_right(&m));
        CHECK_STRING(passes(&m, rows[i].stage), rows[i].passes);
        CHECK_CLOSE(m.s.makespan, rows[i].makespan, 1e-9);
        for (int s = 0; s < rows[i].stages && rows[i].training && rows[i].rounds > 4; s++)
            CHECK(m.s.stages[s].most_in_flight == rows[i].stages - s);
        arena_free(&m.arena);
    }
}

CLAIM(the_bubble_is_that_of_theory) {
    for (int P = 1; P <= MOST_STAGES; P++)
        for (int v = 1; v <= MOST_ROUNDS; v++) {
            Made m;
            make(&m, P, v, 1);
            fill_equal(&m, 1, 2);
            CHECK(schedule(&m) == 0 && is_right(&m));
            CHECK_CLOSE(m.s.makespan, 3.0 * (v + P - 1), 1e-9);
            CHECK_CLOSE(schedule_bubble(&m.s, P), (P - 1.0) / (P - 1 + v), 1e-9);
            arena_free(&m.arena);
        }
}

static double uniform(uint64_t seed, uint64_t i) { return random_uniform(seed, i); }

static void fill_random(Made* m, uint64_t seed) {
    int P = m->p.stages, v = m->p.rounds;
    for (int i = 0; i < P * v; i++) {
        int empty = uniform(seed, 1000 + (uint64_t)i) < 0.1;
        m->forward[i] = empty ? 0 : 10 * uniform(seed, 2 * (uint64_t)i);
        m->backward[i] = empty ? 0 : 20 * uniform(seed, 2 * (uint64_t)i + 1);
    }
    for (int s = 0; s < P; s++) m->slots[s] = 1 + (int)(uniform(seed, 2000 + (uint64_t)s) * P);
    for (int r = 0; r < v && uniform(seed, 3000) < 0.5; r++) m->message[r] = uniform(seed, 3001 + (uint64_t)r);
}

// Nothing is faster than the stage with most work, or than one round on its way there and back.
static double bound(const Made* m) {
    double most = 0;
    int P = m->p.stages, v = m->p.rounds;
    for (int s = 0; s < P; s++) {
        double busy = 0;
        for (int r = 0; r < v; r++) busy += m->forward[s * v + r] + (m->p.training ? m->backward[s * v + r] : 0);
        most = MAX(most, busy);
    }
    for (int r = 0; r < v; r++) {
        double way = (P - 1) * m->message[r] * (m->p.training ? 2 : 1);
        for (int s = 0; s < P; s++) way += m->forward[s * v + r] + (m->p.training ? m->backward[s * v + r] : 0);
        most = MAX(most, way);
    }
    return most;
}

CLAIM(ten_thousand_random_pipelines_are_proved) {
    for (uint64_t seed = 1; seed <= 10000; seed++) {
        Made m;
        int P = 1 + (int)(uniform(seed, 4000) * MOST_STAGES), v = (int)(uniform(seed, 4001) * (MOST_ROUNDS + 1));
        make(&m, P, v, uniform(seed, 4002) < 0.8);
        fill_random(&m, seed);
        int good = schedule(&m) == 0 && is_right(&m);
        CHECK(good);
        CHECK(m.s.makespan >= bound(&m) - 1e-9);
        for (int s = 0; s < P; s++) CHECK(m.s.stages[s].most_in_flight <= m.slots[s]);
        for (int s = 0; s < P; s++)  // a stage never runs two passes at a time
            for (int i = 0, last = -1; i < m.s.stages[s].n; i++) {
                const Task* tasks = m.s.stages[s].tasks;
                if (tasks[i].kind >= TASK_SEND) continue;
                if (last >= 0) CHECK(tasks[i].start >= tasks[last].end - 1e-9);
                last = i;
            }
        arena_free(&m.arena);
        if (!good) return;
    }
}

// The one order has all tasks of all stages, and of a message who receives it right behind who sends it.
CLAIM(messages_are_received_as_they_are_sent_in_the_one_order) {
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        Made m;
        int P = 1 + (int)(uniform(seed, 4000) * MOST_STAGES), next[MOST_STAGES] = {0}, wrong = 0;
        const Task* sent = NULL;
        make(&m, P, 1 + (int)(uniform(seed, 4001) * MOST_ROUNDS), uniform(seed, 4002) < 0.8);
        fill_random(&m, seed);
        CHECK(schedule(&m) == 0);
        for (int i = 0; i < m.s.n; i++) {
            const Task* t = &m.s.stages[m.s.order[i]].tasks[next[m.s.order[i]]++];
            int is_received = sent && t->kind == TASK_RECEIVE && t->round == sent->round && t->start == sent->start;
            wrong += sent ? !is_received : t->kind == TASK_RECEIVE;
            sent = t->kind == TASK_SEND ? t : NULL;
        }
        for (int s = 0; s < P; s++) wrong += next[s] != m.s.stages[s].n;
        CHECK(wrong == 0 && !sent);
        arena_free(&m.arena);
    }
}

CLAIM(swapped_tasks_are_found) {
    int found = 0, tried = 0;
    for (int s = 0; s < 3; s++)
        for (int i = 0;; i++) {
            Made m;
            make(&m, 3, 3, 1);
            fill_equal(&m, 1, 2);
            CHECK(schedule(&m) == 0);
            TaskList* list = &m.s.stages[s];
            int is_end = i + 1 >= list->n;
            if (!is_end) {
                Task t = list->tasks[i];
                list->tasks[i] = list->tasks[i + 1], list->tasks[i + 1] = t;
                tried++;
                found += schedule_check(&m.s, &m.p, &m.arena, m.err) != 0;
            }
            arena_free(&m.arena);
            if (is_end) break;
        }
    CHECK(tried > 30 && found > tried / 2);  // some neighbours may indeed change places
}

// A missing task, a slot that is another's; and stage 0 sends round 1 before it takes the gradient of round 0, stage 1
// wants it the other way round.
CLAIM(what_is_missing_or_wrong_or_waits_for_each_other_is_found) {
    static const char* const words[] = {"", "another slot", "for ever"};
    for (int fault = 0; fault < 3; fault++) {
        Made m;
        make(&m, 2, 2, 1);
        m.slots[1] = 2;
        fill_equal(&m, 1, 2);
        CHECK(schedule(&m) == 0 && is_right(&m));
        TaskList* list = &m.s.stages[1];
        int send = -1, receive = -1;
        for (int i = 0; i < list->n; i++) {
            if (list->tasks[i].kind == TASK_SEND && list->tasks[i].round == 0) send = i;
            if (list->tasks[i].kind == TASK_RECEIVE && list->tasks[i].round == 1) receive = i;
        }
        CHECK(receive >= 0 && send > receive);
        Task late = list->tasks[receive];
        if (fault == 0) list->n--;
        if (fault == 1) m.s.stages[0].tasks[0].slot = 1;
        if (fault == 2) {
            memmove(list->tasks + receive, list->tasks + receive + 1, sizeof late * (size_t)(send - receive));
            list->tasks[send] = late;
        }
        CHECK(schedule_check(&m.s, &m.p, &m.arena, m.err) != 0 && strstr(m.err, words[fault]));
        arena_free(&m.arena);
    }
}

int main(void) { return test_main(); }
