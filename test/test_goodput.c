// test_goodput.c - claims about plan/search/goodput.h: the formula against ranks that die at random, its best interval
// against all others.
#include "plan/search/goodput.h"

#include <math.h>

#include "plan/base/base.h"
#include "test/test.h"

enum { RANKS = 1024, SAVES = 20000 };

#define STEP 6.0   // seconds
#define SAVE 3.0   // of a save
#define MTBF 1024  // hours of a rank: the cluster loses one every hour

static double next_death(double now, uint64_t* drawn) {
    return now - 3600.0 * MTBF * log(1 - random_uniform(7, (*drawn)++));
}

static int first_of(const double* death) {
    int first = 0;
    for (int r = 1; r < RANKS; r++) first = death[r] < death[first] ? r : first;
    return first;
}

// Plays K steps and a save, SAVES times, each anew from its beginning after a death and a restart; ranks die one by
// one, also while the others save or start. Returns the share of time that went into steps which count.
static double played_share(double restart, int K) {
    static double death[RANKS];
    uint64_t drawn = 0;
    double now = 0, part = K * STEP + SAVE;
    for (int r = 0; r < RANKS; r++) death[r] = next_death(0, &drawn);
    for (int first = first_of(death), done = 0; done < SAVES;) {
        if (death[first] >= now + part) {
            now += part, done++, part = K * STEP + SAVE;
            continue;
        }
        now = death[first], part = K * STEP + SAVE + restart;  // what is next begins with a restart
        death[first] = next_death(now, &drawn), first = first_of(death);
    }
    return SAVES * K * STEP / now;
}

CLAIM(goodput_is_what_random_deaths_leave) {
    for (int restart = 10; restart <= 100; restart *= 10)
        for (int K = 10; K <= 100; K *= 10) {
            double share = goodput_share(RANKS, MTBF, STEP, SAVE, restart, K), played = played_share(restart, K);
            printf("    restart %d s, a save every %d steps: formula %.4f, played %.4f\n", restart, K, share, played);
            CHECK_CLOSE(played, share, 0.02 * share);
        }
}

CLAIM(the_best_interval_is_better_than_all_others) {
    for (double save = 0.01; save < 200; save *= 3)
        for (double mtbf = 10; mtbf < 1e6; mtbf *= 10) {
            Goodput g = goodput_best(RANKS, mtbf, STEP, save, 60);
            CHECK_CLOSE(g.share, goodput_share(RANKS, mtbf, STEP, save, 60, g.every), 1e-12);
            CHECK_CLOSE(g.deaths, RANKS / mtbf, 1e-9 * g.deaths);
            for (double K = 1; K < 1e5; K = floor(1.1 * K + 1))
                CHECK(g.share >= goodput_share(RANKS, mtbf, STEP, save, 60, K));
        }
}

// Where a save is short beside what lies between two deaths.
CLAIM(the_best_interval_is_youngs_where_saves_are_short) {
    double M = 3600 * 1e5 / RANKS;
    for (double save = 1; save < 10; save *= 2)
        CHECK_CLOSE(goodput_best(RANKS, 1e5, 0.1, save, 60).every * 0.1, sqrt(2 * save * M), 0.02 * sqrt(2 * save * M));
}

CLAIM(where_nobody_dies_only_saves_take_time) {
    CHECK_CLOSE(goodput_share(1, 1e9, 1, 1, 60, 9), 0.9, 1e-6);
    CHECK(goodput_best(1, 1e9, 1, 0.1, 60).share > 0.999);
}

int main(void) { return test_main(); }
