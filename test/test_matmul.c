// test_matmul.c - the matmuls of every instruction set that this machine has, or of the device under test; see
// matmul_checks.h.
#include "test/matmul_checks.h"

CLAIM(fp32_matmuls_are_right) { check_matmuls(DT_F32); }
CLAIM(bf16_matmuls_are_right) { check_matmuls(DT_BF16); }

#ifndef TEST_DEVICE

// The product of bf16 pairs is chosen only where it is fast, but must be right everywhere.
CLAIM(matmuls_of_bf16_pairs_are_right) {
#ifdef HAVE_X86_ISAS
    extern const CpuFamily matmul_pairs_avx512bf16;
    if (!cpu_has(CPU_AVX512BF16)) SKIP("the processor lacks avx512_bf16");
    Kernels k = *cpu_kernels(CPU_AVX512BF16);
    matmul_pairs_avx512bf16.install(&k);
    only_table = &k;
    check_matmuls(DT_BF16);
    only_table = NULL;
#else
    SKIP("this build has no x86 instruction sets");
#endif
}

#endif

static int has_own(const Kernels* t, const Kernels* r) {
    return t->matmul_forward != r->matmul_forward && t->matmul_backward_input != r->matmul_backward_input &&
           t->matmul_backward_weight != r->matmul_backward_weight;
}

int main(void) {
    claim_own_entries(has_own);
    return test_main();
}
