// test_random.c - the claims of plan/base/base.h on random numbers.
#include "plan/base/base.h"
#include "test/test.h"

enum { SOME = 1 << 18, SEED = 7 };
static double value[SOME];

// By long double's functions, of the argument of the cosine that random.c rounds to double.
static long double exact(uint64_t index) {
    double u = random_uniform(SEED, 2 * index), v = random_uniform(SEED, 2 * index + 1), angle = 6.283185307179586 * v;
    return sqrtl(-2 * logl(1.0 - u)) * cosl(angle);
}

// In units of 2^-52: the logarithm within 1, which its root halves; root, and product within 1/2; the cosine within 1.
CLAIM(normals_are_exact_to_the_last_digits) {
    const double most = 2.5 * 0x1p-52;
    double worst = 0;
    int other_weights = 0;
    random_normals(value, SEED, 0, SOME);
    for (uint64_t i = 0; i < SOME; i++) {
        long double x = exact(i);
        worst = fmax(worst, x != 0 ? (double)fabsl((value[i] - x) / x) : value[i] != 0);
        other_weights += (float)(0.02 * value[i]) != (float)(0.02L * x);
    }
    CHECK(worst > 0 && worst <= most);
    CHECK(other_weights == 0);  // expected: 2.5 * 2^-52 / 2^-24 of each, a chance of a thousandth for all
    printf("  error of normals: at most %.2f units of 2^-52\n", worst * 0x1p52);
}

// One alone is computed without vectors.
CLAIM(normals_are_the_same_one_by_one) {
    for (size_t n = 1; n < 40; n++) {
        random_normals(value, SEED, 1000 * n, n);
        for (size_t i = 0; i < n; i++) CHECK(value[i] == random_normal(SEED, 1000 * n + i));
    }
}

CLAIM(every_processor_has_the_recorded_bits) {
    uint64_t bits, hash = 0;
    random_normals(value, SEED, (uint64_t)1 << 40, SOME);
    for (int i = 0; i < SOME; i++) memcpy(&bits, &value[i], sizeof bits), hash = hash64(hash ^ bits);
    CHECK(hash == 0x40facb025f2cf706u);
}

CLAIM(uniform_numbers_fill_the_interval) {
    double least = 1, most = 0;
    for (uint64_t i = 0; i < SOME; i++) {
        double u = random_uniform(SEED, i);
        CHECK(u == (double)(hash64(hash64(SEED) ^ i) >> 11) * 0x1p-53);
        least = fmin(least, u), most = fmax(most, u);
    }
    CHECK(least >= 0 && least < 16.0 / SOME && most < 1 && most > 1 - 16.0 / SOME);  // e^-16 of chance
}

int main(void) { return test_main(); }
