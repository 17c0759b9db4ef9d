// fuzz_machine.c - machine files: any bytes give a machine that makes sense and prints back, or a message.
#include <math.h>
#include <stdlib.h>

#include "plan/machine.h"
#include "test/fuzz/require.h"

enum { RANKS = 24 };

static void check_setting(const Machine* machine, int ranks) {
    static GroupCost groups[RANKS + 1];
    char err[ERR_BYTES] = "";
    Setting setting;
    if (machine_setting(&setting, machine, ranks, 8, 1 << 20, groups, err, sizeof err)) {
        require(err[0]);
        return;
    }
    for (int d = 1; d <= ranks; d++) {
        double ms = group_ms(&groups[d], 1e10, 1e5);
        require(groups[d].ulysses_size >= 1 && groups[d].room >= 1 && isfinite(ms) && ms >= 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
    static Machine machine, again;
    static char text[1 << 14], twice[1 << 14];
    char err[ERR_BYTES] = "";
    if (machine_parse(&machine, (const char*)bytes, n, err, sizeof err)) {
        require(err[0] && memchr(err, 0, sizeof err) && !strchr(err, '\n'));
        return 0;
    }
    size_t length = machine_print(&machine, text, sizeof text);
    require(length < sizeof text && machine_parse(&again, text, length, err, sizeof err) == 0);
    require(machine_print(&again, twice, sizeof twice) == length && !strcmp(text, twice));
    for (int ranks = 1; ranks <= RANKS; ranks++) check_setting(&machine, ranks);
    for (int i = 0; i < machine.n_schemes; i++)
        require(machine_scheme_tokens(&machine, &machine.schemes[i], 2, 4, 1) % 128 == 0);
    return 0;
}
