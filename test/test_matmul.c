// test_matmul.c - the matmuls of every instruction set that this machine has, or of the device under test; see
// matmul_checks.h.
#include "test/matmul_checks.h"

#ifdef TEST_DEVICE

static void check_device(DType dt, Epilogues epilogues) {
    const Kernels* k = NULL;
    if (tested_tables(&k)) check_matmuls(k, dt, epilogues);
}

static void fp32_matmuls_are_right(void) { check_device(DT_F32, EPILOGUE_BIAS); }
static void fp32_matmuls_with_all_epilogues_are_right(void) { check_device(DT_F32, EPILOGUE_ALL); }
static void bf16_matmuls_are_right(void) { check_device(DT_BF16, EPILOGUE_BIAS); }
static void bf16_matmuls_with_dgelu_are_right(void) { check_device(DT_BF16, EPILOGUE_DGELU); }
static void bf16_matmuls_with_all_epilogues_are_right(void) { check_device(DT_BF16, EPILOGUE_ALL); }

int main(void) {
    RUN(fp32_matmuls_are_right);
    RUN(fp32_matmuls_with_all_epilogues_are_right);
    RUN(bf16_matmuls_are_right);
    RUN(bf16_matmuls_with_dgelu_are_right);
    RUN(bf16_matmuls_with_all_epilogues_are_right);
    return test_done();
}

#else

static void check_set(CpuIsa isa) {
    const Kernels* k = cpu_kernels(isa);
    if (!k) SKIP("the processor or the build lacks this instruction set");
    check_matmuls(k, DT_F32, EPILOGUE_BIAS);
    check_matmuls(k, DT_BF16, EPILOGUE_BIAS);
}

static void generic_matmuls_are_right(void) { check_set(CPU_GENERIC); }
static void avx2_matmuls_are_right(void) { check_set(CPU_AVX2); }
static void avx512_matmuls_are_right(void) { check_set(CPU_AVX512); }
static void avx512bf16_matmuls_are_right(void) { check_set(CPU_AVX512BF16); }
static void amx_matmuls_are_right(void) { check_set(CPU_AMX); }

// The product of bf16 pairs is chosen only where it is fast, but must be right everywhere.
static void matmuls_of_bf16_pairs_are_right(void) {
#ifdef HAVE_X86_ISAS
    extern const CpuFamily matmul_pairs_avx512bf16;
    if (!cpu_has(CPU_AVX512BF16)) SKIP("the processor lacks avx512_bf16");
    Kernels k = *cpu_kernels(CPU_AVX512BF16);
    matmul_pairs_avx512bf16.install(&k);
    check_matmuls(&k, DT_BF16, EPILOGUE_BIAS);
#else
    SKIP("this build has no x86 instruction sets");
#endif
}

int main(void) {
    RUN(generic_matmuls_are_right);
    RUN(avx2_matmuls_are_right);
    RUN(avx512_matmuls_are_right);
    RUN(avx512bf16_matmuls_are_right);
    RUN(amx_matmuls_are_right);
    RUN(matmuls_of_bf16_pairs_are_right);
    return test_done();
}

#endif
