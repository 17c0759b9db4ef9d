// test_matmul.c - the matmuls of every instruction set that this machine has, or of the device under test; see
// matmul_checks.h.
#include "test/matmul_checks.h"

#ifdef TEST_DEVICE

static void check_device(DType dt, Epilogues epilogues) {
    const Kernels* k = NULL;
    if (tested_tables(&k)) check_matmuls(k, dt, epilogues);
}

CLAIM(fp32_matmuls_are_right) { check_device(DT_F32, EPILOGUE_BIAS); }
CLAIM(fp32_matmuls_with_all_epilogues_are_right) { check_device(DT_F32, EPILOGUE_ALL); }
CLAIM(bf16_matmuls_are_right) { check_device(DT_BF16, EPILOGUE_BIAS); }
CLAIM(bf16_matmuls_with_dgelu_are_right) { check_device(DT_BF16, EPILOGUE_DGELU); }
CLAIM(bf16_matmuls_with_all_epilogues_are_right) { check_device(DT_BF16, EPILOGUE_ALL); }

#else

static void check_set(CpuIsa isa) {
    const Kernels* k = cpu_kernels(isa);
    if (!k) SKIP("the processor or the build lacks this instruction set");
    check_matmuls(k, DT_F32, EPILOGUE_BIAS);
    check_matmuls(k, DT_BF16, EPILOGUE_BIAS);
}

CLAIM(generic_matmuls_are_right) { check_set(CPU_GENERIC); }
CLAIM(avx2_matmuls_are_right) { check_set(CPU_AVX2); }
CLAIM(avx512_matmuls_are_right) { check_set(CPU_AVX512); }
CLAIM(avx512bf16_matmuls_are_right) { check_set(CPU_AVX512BF16); }
CLAIM(amx_matmuls_are_right) { check_set(CPU_AMX); }

// The product of bf16 pairs is chosen only where it is fast, but must be right everywhere.
CLAIM(matmuls_of_bf16_pairs_are_right) {
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

#endif

int main(void) { return test_main(); }
