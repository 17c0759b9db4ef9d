// test_launch.c - ranks that test/ranks.sh starts without MPI: who they are, what they tell each other about claims.
// test/launch.sh starts it.
#include "test/ranks.h"

CLAIM(ranks_know_themselves) {
    RankIdentity id;
    CHECK(rank_identity(&id, NULL) == 0);
    CHECK(id.rank == rank && id.size == size && size == 3);
    CHECK(id.local_rank == rank);
    CHECK_STRING(id.source, "torchrun");
    CHECK_STRING(id.master, "127.0.0.1");
}

CLAIM(sums_are_those_of_all_ranks) {
    for (int i = 0; i < 100; i++) {
        int x[2] = {rank, i};
        ranks_add_up(x);
        CHECK(x[0] == 3 && x[1] == 3 * i);
    }
}

static void a_claim_fails_on_all_ranks_where_one_fails(void) { CHECK(rank != 1); }

int main(int n_arguments, char** arguments) {
    ranks_start(&n_arguments, &arguments);
    run_claims_together();
    if (n_arguments > 1) RUN_TOGETHER(a_claim_fails_on_all_ranks_where_one_fails);
    return ranks_done();
}
