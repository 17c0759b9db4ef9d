// machines.c - machines whose constants are published, in the format of machine.h.
#include "plan/machine.h"

// FlexSP's all-to-all on 8 nodes of 8 A100-40GB, counted there in 2^20 bytes a ms: 119.54, 104.07, 96.5, 10.33, 5.94,
// 4.87, here times 1.048576.
#define FLEXSP_LINKS         \
    "group 2 125.34677504\n" \
    "group 4 109.12530432\n" \
    "group 8 101.187584\n"   \
    "group 16 10.83179008\n" \
    "group 32 6.22854144\n"  \
    "group 64 5.10656512\n"

static const char* const texts[] = {
    "name flexsp-7b\n"
    "# FlexSP (Wang et al., ASPLOS 2025, arXiv 2412.01523), constants of its released cost model: GPT-7B, 32 layers,\n"
    "# width 4096, A100-40GB. Memory: 30 GB, parameters at a context of 192K (384K: 7.850).\n"
    "quadratic_ms 5.128e-6\n"
    "linear_ms 0.1839576\n"
    "round_ms 629.3563\n"
    "heads 64\n"
    "memory 30 7.117 4.480442\n"
    "token_bytes 2097152 # 4 tensors, 2 ways, 32 layers of 4096 channels of 2 bytes\n" FLEXSP_LINKS,

    "name flexsp-13b\n"
    "# as flexsp-7b, 40 layers of width 5120 (384K: 14.032)\n"
    "quadratic_ms 9.2852e-6\n"
    "linear_ms 0.3060189\n"
    "round_ms 1132.5632\n"
    "heads 64\n"
    "memory 30 13.116 4.220439\n"
    "token_bytes 3276800\n" FLEXSP_LINKS,

    "name flexsp-30b\n"
    "# as flexsp-7b, 60 layers of width 6656 (384K: 32.715)\n"
    "quadratic_ms 15.4262e-6\n"
    "linear_ms 0.8035742\n"
    "round_ms 2789.3644\n"
    "heads 64\n"
    "memory 30 31.525 3.417382\n"
    "token_bytes 6389760\n" FLEXSP_LINKS,

    "name a100-7b\n"
    "# FlexSP's constants of a 7B model without its barrier, as a planner meets them: heads divide by any cp size, "
    "6451\n"
    "# tokens a rank, bandwidths rounded to groups of 2, 3 to 4, 5 to 8 ranks and so on.\n"
    "quadratic_ms 5.128e-6\n"
    "linear_ms 0.1839576\n"
    "heads 0\n"
    "capacity 6451\n"
    "token_bytes 2097152\n"
    "group 2 119.66\n"
    "group 4 104.22\n"
    "group 8 96.5\n"
    "group 16 10.33\n"
    "group 32 5.94\n"
    "group 64 4.87\n",

    "name h200-8b\n"
    "# An 8B model with a quarter as many key and value heads on nodes of 8 H200: start values, estimated from "
    "measured\n"
    "# matmul, NVLink and InfiniBand rates.\n"
    "quadratic_ms 2.13e-6\n"
    "linear_ms 0.080\n"
    "heads 0\n"
    "capacity 24576\n"
    "token_bytes 1310720 # 20480 of each of 32 layers, 2 ways\n"
    "group 2 372\n"
    "group 4 324\n"
    "group 8 300\n"
    "group 16 40\n"
    "group 32 38\n"
    "group 64 35\n"
    "group 128 30\n"
    "group 256 26\n",

    "name hydraulis-32b\n"
    "# Hydraulis (Li et al., SIGMOD 2026, arXiv 2412.07894), profiled constants of its artefact: 60 layers of width "
    "6656,\n"
    "# A800-80GB. Replicas of tensor-parallel times pipeline ranks.\n"
    "quadratic_ms 0 # a rank alone holds no replica: only schemes have a time\n"
    "linear_ms 0\n"
    "heads 64\n"
    "pipeline_memory 60 6656 30592 201 0.75 10240 5000 81252 36 36 37 42 50\n"
    "scheme TP16 16 1 1.37779723e-6 0.102435387 145.748\n"
    "scheme TP8 8 1 2.12548718e-6 0.141411593 122.910\n"
    "scheme TP8PP2 8 2 1.06789378e-6 0.071058246 61.768\n"
    "scheme TP8PP3 8 3 6.85518086e-7 0.0482754236 38.070\n"
    "scheme TP8PP4 8 4 4.91076016e-7 0.0370804063 25.442\n"
    "scheme TP4 4 1 3.86950049e-6 0.238996833 120.695\n"
    "scheme TP4PP2 4 2 2.04563898e-6 0.118301177 65.424\n"
    "scheme TP4PP4 4 4 1.05779156e-6 0.0592119769 35.335\n"
    "scheme TP4PP6 4 6 7.02993498e-7 0.0398508980 24.072\n"
    "scheme TP2 2 1 2.97455561e-5 0.386957078 156.201\n"
    "scheme TP2PP2 2 2 3.73416233e-6 0.213060059 80.717\n"
    "scheme TP2PP4 2 4 1.97033746e-6 0.106558744 42.945\n"
    "scheme TP2PP6 2 6 1.31605318e-6 0.0718051676 28.616\n"
    "scheme TP1PP2 1 2 0 0.48988971 22.882\n"
    "scheme TP1PP4 1 4 9.39192752e-7 0.212596087 35.995\n",

    "name hydraulis-7b\n"
    "# as hydraulis-32b, 32 layers of width 4096\n"
    "quadratic_ms 0\n"
    "linear_ms 0\n"
    "pipeline_memory 32 4096 30592 210 0.75 6144 5000 81252 38 39 42 48 61\n"
    "scheme TP1PP2 1 2 1.37240947e-6 0.0946477810 15.047\n"
    "scheme TP4 4 1 1.03043340e-6 0.0564777342 56.698\n"
    "scheme TP8 8 1 5.06885473e-7 0.0366182377 44.317\n"
    "scheme TP16 16 1 3.01808129e-7 0.0292311085 65.236\n",
};

const char* machine_names(void) {
    return "flexsp-7b, flexsp-13b, flexsp-30b, a100-7b, h200-8b, hydraulis-32b, hydraulis-7b";
}

// Every text begins with the line "name NAME".
const char* machine_builtin(const char* name) {
    size_t before = strlen("name "), n = strlen(name);
    for (int i = 0; i < COUNT(texts); i++)
        if (!strncmp(texts[i] + before, name, n) && texts[i][before + n] == '\n') return texts[i];
    return NULL;
}
