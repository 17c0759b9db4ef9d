// test_muon.c - Muon's matrices: whole, dealt once, by cost and pace; the same losses on any ranks and after a resume.
// test_golden.c compares its steps with PyTorch's.
#include "plan/model/matrices.h"
#include "test/program.h"

#define TINY                                                                                                 \
    "--data $W/corpus --layers 3 --width 48 --heads 4 --context 96 --batch-tokens 512 --lr 0.003 --steps 6 " \
    "--optimizer muon --eval-every 0 --sample-every 0 --save-every 0 --dtype fp32 --threads 1 "

// ---- dealing

enum { MOST_RANKS = 9 };

static int whole_matrices(Matrix** list, int arch, int layers) {
    Shape whole = shape_whole((Shape){.arch = (Arch)arch,
                                      .L = layers,
                                      .C = 64,
                                      .NH = 4,
                                      .NKV = 4,
                                      .HS = 16,
                                      .U = 256,
                                      .V = 257,
                                      .context = 64,
                                      .positions = 64,
                                      .shards = 1});
    int n = shape_matrices(NULL, &whole);
    *list = (Matrix*)calloc((size_t)n, sizeof **list);
    CHECK(shape_matrices(*list, &whole) == n);
    for (int i = 0; i < n; i++) CHECK((*list)[i].rows > 0 && (*list)[i].cols > 0);
    return n;
}

CLAIM(queries_keys_values_gates_and_ups_are_matrices_of_their_own) {
    Matrix* list;
    CHECK(whole_matrices(&list, ARCH_GPT2, 2) == 2 * 6);  // q, k, v, projection, and the MLP's two
    free(list);
    CHECK(whole_matrices(&list, ARCH_LLAMA, 2) == 2 * 7);
    CHECK(list[0].row == 0 && list[1].row == list[0].rows && list[2].row == list[1].row + list[1].rows);
    free(list);
}

// No rank has more work than its share and one matrix; places of a rank's matrices follow each other.
CLAIM(matrices_are_dealt_once_by_cost) {
    Matrix* list;
    int n = whole_matrices(&list, ARCH_LLAMA, 5);
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        double sum = 0, largest = 0, work[MOST_RANKS] = {0};
        size_t most = 0, elems[MOST_RANKS] = {0};
        size_t told = deal_matrices(list, n, ranks);
        for (int i = 0; i < n; i++) {
            const Matrix* m = &list[i];
            double flops = matrix_flops(m);
            CHECK(m->rank >= 0 && m->rank < ranks && m->at == elems[m->rank]);
            elems[m->rank] += (size_t)m->rows * (size_t)m->cols;
            sum += flops, work[m->rank] += flops, largest = fmax(largest, flops);
        }
        for (int r = 0; r < ranks; r++) {
            most = MAX(most, elems[r]);
            CHECK(work[r] <= sum / ranks + largest + 1);
        }
        CHECK(most == told);
    }
    free(list);
}

// ---- any ranks, any layout

static void run_as(const char* name, const char* options) {
    CHECK_SH(0, "$P " TINY "%s --out $W/%s", options, name);
    CHECK_SAID("done at step 6 of 6");
}

CLAIM(any_ranks_take_the_same_steps) {
    static const char* const archs[] = {"", "--arch llama,kv-heads=2 ", "--arch qwen3,kv-heads=2,tie=yes "};
    static const char* const layouts[] = {"--ranks 2",
                                          "--ranks 3 --zero 2",
                                          "--ranks 2 --zero 3",
                                          "--ranks 2 --tp 2",
                                          "--ranks 2 --pp 2",
                                          "--ranks 4 --cp 2",
                                          "--ranks 4 --tp 2 --zero 3",
                                          "--ranks 4 --tp 2 --pp 2 --recompute block"};
    for (int a = 0; a < COUNT(archs); a++) {
        run_as(filled("one%d", a), archs[a]);
        for (int i = a; i < COUNT(layouts); i += a ? 3 : 1) {
            char name[32];
            snprintf(name, sizeof name, "many%d-%d", a, i);
            run_as(name, filled("%s%s", archs[a], layouts[i]));
            CHECK_LOSSES(name, filled("one%d", a), 6, 1e-6);
        }
    }
}

CLAIM(ranks_that_change_strategies_take_the_same_steps) {
    run_as("lists", "--ranks 4 --strategies '2xtp2;4xtp1'");
    CHECK_LOSSES("lists", "one0", 6, 1e-6);
}

CLAIM(a_resumed_run_takes_the_same_steps_and_keeps_its_optimizer) {
    CHECK_SH(0, "$P " TINY
                "--steps 6 --save-every 3 --keep 0 --ranks 2 --out $W/whole && cp -r $W/whole $W/half && "
                "rm -r $W/half/step-000006");
    char hash[17];
    snprintf(hash, sizeof hash, "%s", loss_hash_or_none());
    CHECK_SH(0, "$P --resume --out $W/half --ranks 2");
    CHECK(!strcmp(hash, loss_hash_or_none()));
    CHECK_SH(0, "rm -r $W/half/step-000006");
    CHECK_REFUSED("--optimizer & muon", "$P --resume --optimizer adamw --out $W/half");
    CHECK_SH(0, "$P --sample a --tokens 4 --optimizer adamw --out $W/half");  // no moments are needed
    CHECK_REFUSED("momentum & muon's", "$P --optimizer adamw,momentum=0.9 --data $W/corpus --out $W/refused");
}

PROGRAM_TEST { CHECK_SH(0, "mkdir $W/corpus && cp plan/base/*.h $W/corpus"); }
