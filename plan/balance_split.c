// balance_split.c - dividing slices among ranks of unlike speed, were moving them free.
//
// Water filling: rank r, with c_r ms of work that stays and v_r slices a millisecond, gets n_r = v_r (T - c_r) slices,
// and all end at T = (S + sum_A v c) / sum_A v. A rank outside A has c_r >= T: nothing is left for it. Removing one
// lowers T, so that whoever was removed stays outside, and a few passes find A.
//
// In whole slices the next one goes where it would end first. That is optimal: an exchange of any two slices of another
// division never makes its last rank end sooner.
#include "plan/balance.h"

double balance_split(double* n, const double* v, const double* c, double slices, int ranks) {
    int inside[MOST_TP], first = 0, removed;
    for (int r = 0; r < ranks; r++) {
        inside[r] = 1;
        if (c[r] < c[first]) first = r;  // never a violator; rounding must not make it one
    }
    double T = 0;
    do {
        double speed = 0, work = slices;
        for (int r = 0; r < ranks; r++)
            if (inside[r]) speed += v[r], work += v[r] * c[r];
        T = work / speed;
        removed = 0;
        for (int r = 0; r < ranks; r++)
            if (inside[r] && r != first && c[r] >= T) inside[r] = 0, removed = 1;
    } while (removed);
    double step = T;
    for (int r = 0; r < ranks; r++) {
        n[r] = inside[r] ? MAX(0, v[r] * (T - c[r])) : 0;
        step = MAX(step, c[r]);
    }
    return step;
}

double balance_split_whole(int* n, const double* v, const double* c, int slices, int ranks) {
    for (int r = 0; r < ranks; r++) n[r] = 0;
    for (int i = 0; i < slices; i++) {
        int best = 0;
        double soonest = c[0] + (n[0] + 1) / v[0];
        for (int r = 1; r < ranks; r++) {
            double end = c[r] + (n[r] + 1) / v[r];
            if (end < soonest) best = r, soonest = end;
        }
        n[best]++;
    }
    double step = 0;
    for (int r = 0; r < ranks; r++) step = MAX(step, c[r] + n[r] / v[r]);
    return step;
}
