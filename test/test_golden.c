// test_golden.c - the whole program against PyTorch in double precision (dev/reference.py made test/golden), and
// against itself where two ways must give the same bits. The program under test may name a device.
#include "data/model_files.h"
#include "test/program.h"
#include "test/tensors.h"

static const char *arch, *starts_as = "init", *wanted = "golden";  // of the claim at work

// The corpus is one step: every step trains on all of it. Validation takes the same documents, so none is held out.
#define STEP "--batch-tokens 516 --context 48 "
#define GOLDEN_OPTIONS                                                                                \
    "--init test/golden/%s/%s --data test/golden/docs.jsonl --val test/golden/docs.jsonl " STEP       \
    "--lr 0.003 --warmup 3 --schedule cosine,min-lr=0.1 --adamw decay=0.1 --clip 1 --sample-every 0 " \
    "--save-every 0 --eval-every 0"

// Options of the CPU's kernels say nothing to another device.
static int says_nothing(const char* options) {
    return strstr(program, "--device") &&
           (strstr(options, "generic") || strstr(options, "reference") || strstr(options, "--threads"));
}

static double golden_losses[64], golden_norms[64];
static int n_golden;

static void read_golden(const char* name) {
    static char text[1 << 16];
    Json json;
    size_t n = read_text(filled("test/golden/%s/%s", arch, name), text, sizeof text);
    n_golden = 0;
    if (json_parse(&json, text, n, NULL)) return;
    const JsonValue *losses = json_get(json.values, "losses"), *norms = json_get(json.values, "grad_norms");
    for (; json_at(losses, n_golden) && n_golden < 64; n_golden++) {
        json_double(json_at(losses, n_golden), &golden_losses[n_golden]);
        json_double(json_at(norms, n_golden), &golden_norms[n_golden]);
    }
    json_free(&json);
}

static double largest_of(const SafeTensor* t) {
    double largest = 0;
    for (size_t i = 0; t && i < t->bytes / 4; i++) largest = fmax(largest, fabs((double)((const float*)t->data)[i]));
    return largest;
}

// What is the same for all keys of a document changes no softmax: the gradient of their bias is what rotation leaves of
// sums that cancel. Rounding is measured by the sums' size, which that of the values' bias has.
static double size_of(const SafeTensors* golden, const SafeTensor* t, int rounded) {
    char name[sizeof t->name];
    strcpy(name, t->name);
    char* keys = rounded ? strstr(name, "k_proj.bias") : NULL;
    if (keys) *keys = 'v';
    return largest_of(safetensors_get(golden, name));
}

// Worst |found - golden| / size over all tensors of two files. rounded: to bf16.
static double worst_difference(const char* path, const char* golden_path, int rounded) {
    SafeTensors found, golden;
    char err[ERR_BYTES] = "", *found_bytes, *golden_bytes;
    double worst = 0;
    if (tensors_load(&golden, &golden_bytes, golden_path, err) || tensors_load(&found, &found_bytes, path, err)) {
        printf("    %s\n", err);
        return NAN;
    }
    int extra = safetensors_get(&found, "logits") ? 2 : 0;  // and documents; several ranks write neither
    CHECK(found.n == golden.n + extra && golden.n >= 16);
    for (int i = 0; i < golden.n; i++) {
        const SafeTensor *g = &golden.tensors[i], *f = safetensors_get(&found, g->name);
        CHECK(f && f->bytes == g->bytes && f->dtype == DT_F32);
        if (!f || f->bytes != g->bytes) continue;
        double difference = 0;
        for (size_t j = 0; j < g->bytes / 4; j++) {
            double a = ((const float*)f->data)[j], b = ((const float*)g->data)[j];
            difference = a == a ? fmax(difference, fabs(a - b)) : INFINITY;
        }
        worst = fmax(worst, difference / size_of(&golden, g, rounded));
    }
    safetensors_close(&found), free(found_bytes);
    safetensors_close(&golden), free(golden_bytes);
    return worst;
}

static double dump(const char* launcher, const char* options) {
    CHECK_SH(0, "rm -f $W/grads && %s $P " GOLDEN_OPTIONS " --dump-grads $W/grads %s", launcher, arch, starts_as,
             options);
    return worst_difference(path_of("grads"), filled("test/golden/%s/%s.safetensors", arch, wanted),
                            strstr(options, "bf16") != NULL);
}

static void check_gradients(const char* launcher, const char* common, const char* const* ways, int n,
                            double tolerance) {
    for (int i = 0; i < n; i++) {
        char options[200];
        if (says_nothing(ways[i])) continue;
        if (!strcmp(arch, "qwen2") && strstr(ways[i], "ulysses")) continue;  // its one key/value head is not shared
        snprintf(options, sizeof options, "%s %s", common, ways[i]);
        double worst = dump(launcher, options);
        printf("    %-48s largest relative difference %.2e\n", options, worst);
        CHECK(worst <= tolerance);
    }
}

CLAIM(gradients_agree_with_pytorch_in_fp32) {
    const char* ways[] = {"--cpu-isa reference",
                          "--cpu-isa auto",
                          "--cpu-isa generic",
                          "--cpu-isa auto --capacity 48",
                          "--cpu-isa auto --recompute block",
                          "--cpu-isa auto --recompute activation"};
    check_gradients("", "--dtype fp32", ways, COUNT(ways), 1e-5);
}

CLAIM(ranks_together_agree_with_pytorch_in_fp32) {
    const char* ways[] = {"--cp 2,kind=ring --zero 3", "--cp 2,kind=ulysses", "--tp 2 --zero 2"};
    if (strstr(program, "--device")) SKIP("test_law tries ranks with devices");
    if (!has_mpirun()) SKIP("mpirun is not here");
    check_gradients("mpirun --oversubscribe --bind-to none -n 2", "--threads 1 --dtype fp32", ways, COUNT(ways), 1e-5);
}

// bf16 keeps 8 bits: one rounding is at most 2^-9 relative. A gradient passes through about 12 rounded tensors a
// layer and direction, so 2 layers * 2 * 12 = 48 roundings; errors add like random signs, sqrt(48) * 2^-9 = 1.4 %,
// relative to the typical element; the largest of ten thousand elements may be four standard deviations out: 5.4 %.
CLAIM(gradients_agree_with_pytorch_in_bf16_as_far_as_its_rounding) {
    const char* ways[] = {"--cpu-isa reference", "--cpu-isa auto"};
    check_gradients("", "--dtype bf16", ways, COUNT(ways), 4 * sqrt(48) / 512);
}

static void ten_steps(const char* options, double tolerance) {
    double losses[64] = {0}, norms[64] = {0}, worst = 0;
    CHECK_SH(0, "rm -rf $W/run && $P " GOLDEN_OPTIONS " --steps 10 --out $W/run %s", arch, starts_as, options);
    int n = log_values("run", "loss", losses, 64);
    CHECK(n == n_golden && n == 10);
    CHECK(log_values("run", "grad_norm", norms, 64) == n);
    for (int i = 0; i < n && i < n_golden; i++) {
        CHECK_CLOSE(losses[i], golden_losses[i], tolerance * golden_losses[i]);
        worst = fmax(worst, fabs(losses[i] - golden_losses[i]) / golden_losses[i]);
    }
    // The norm of the first step is of gradients alone; later ones follow the weights.
    CHECK_CLOSE(norms[0], golden_norms[0], 20 * tolerance * golden_norms[0]);
    printf("    ten losses with %-36s largest relative difference %.2e\n", options, worst);
}

CLAIM(ten_steps_follow_pytorch) {
    ten_steps("--dtype fp32 --cpu-isa auto", 1e-5);
    if (!says_nothing("--cpu-isa reference")) ten_steps("--dtype fp32 --cpu-isa reference", 1e-5);
}

CLAIM(ten_steps_of_muon_follow_pytorch) {
    read_golden("muon.json");
    ten_steps("--optimizer muon --dtype fp32 --cpu-isa auto", 1e-5);
    if (!says_nothing("--cpu-isa reference")) ten_steps("--optimizer muon --dtype fp32 --cpu-isa reference", 1e-5);
    if (!strstr(program, "--device")) ten_steps("--optimizer muon --dtype fp32 --ranks 2 --tp 2 --threads 1", 1e-5);
    read_golden("golden.json");
}

// dev/reference.py compared these with PEFT's own classes. In bf16 each linear rounds A, B and x A^T besides, and its
// sum twice: twice as many roundings.
CLAIM(adapters_alone_learn_as_in_pytorch) {
    static const char* const ways[] = {"--cpu-isa auto", "--cpu-isa reference", "--cpu-isa generic --capacity 48",
                                       "--recompute block", "--recompute activation"};
    static const char* const ranks[] = {"--ranks 2 --tp 2 --threads 1", "--ranks 2 --zero 3 --threads 1",
                                        "--ranks 2 --pp 2 --threads 1"};
    starts_as = "adapter", wanted = "lora";
    read_golden("lora.json");
    check_gradients("", "--dtype fp32", ways, COUNT(ways), 1e-5);
    check_gradients("", "--dtype bf16", ways, 2, 4 * sqrt(96) / 512);
    ten_steps("--dtype fp32 --cpu-isa auto", 1e-6);
    for (int i = 0; i < COUNT(ranks) && !strstr(program, "--device"); i++)
        ten_steps(filled("--dtype fp32 %s", ranks[i]), 1e-6);
    starts_as = "init", wanted = "golden";
    read_golden("golden.json");
}

// The loss is a mean over 503 targets of values rounded to 2^-9 relative to logits of size about 5: 5 * 2^-9 /
// sqrt(503) each step from the logits, and as much again from every rounded layer below, sqrt(48) of them: 3e-3 of a
// loss of 5, that is 6e-4.
CLAIM(ten_steps_in_bf16_stay_in_the_band_of_its_rounding) {
    ten_steps("--dtype bf16 --cpu-isa auto", 5 * sqrt(49) / 512 / sqrt(503) / 5 * 2);
}

// Two dumps must have the same logits, bit for bit, for all documents but one; returns how many of its rows
// differ.
static int check_same_logits(const char* a_name, const char* b_name, int changed_document) {
    SafeTensors a, b;
    char err[ERR_BYTES] = "", *a_bytes, *b_bytes;
    CHECK(tensors_load(&a, &a_bytes, path_of(a_name), err) == 0);
    CHECK(tensors_load(&b, &b_bytes, path_of(b_name), err) == 0);
    const SafeTensor *la = safetensors_get(&a, "logits"), *lb = safetensors_get(&b, "logits");
    const SafeTensor* documents = safetensors_get(&a, "documents");
    CHECK(la && lb && documents && la->bytes == lb->bytes && la->dims[0] == 516);
    if (!la || !lb || !documents || la->bytes != lb->bytes) return -1;
    int changed = 0, V = (int)la->dims[1];
    for (int n = 0; n < la->dims[0]; n++) {
        size_t at = (size_t)n * V * sizeof(float);
        int same = !memcmp((const char*)la->data + at, (const char*)lb->data + at, (size_t)V * sizeof(float));
        if (((const float*)documents->data)[n] != (float)changed_document) CHECK(same);
        else changed += !same;
    }
    safetensors_close(&a), free(a_bytes);
    safetensors_close(&b), free(b_bytes);
    return changed;
}

#define ALL_DOCUMENTS STEP "--init test/golden/%s/init --data $W/docs.jsonl --val $W/docs.jsonl"

// Document 4 has 48 tokens; the third of its words is replaced by another of the same length.
CLAIM(changing_one_document_leaves_the_logits_of_the_others_bit_identical) {
    const char* ways[] = {"--dtype fp32", "--dtype bf16", "--dtype fp32 --cpu-isa generic",
                          "--dtype fp32 --capacity 100"};
    for (int i = 0; i < COUNT(ways); i++) {
        if (says_nothing(ways[i])) continue;
        sh("cp test/golden/docs.jsonl $W/docs.jsonl");
        CHECK_SH(0, "%s " ALL_DOCUMENTS " --dump-grads $W/before %s", program, arch, ways[i]);
        CHECK_SH(0,
                 "sed -i '5s/\\(: \".........\\)./\\1#/' $W/docs.jsonl && ! cmp -s $W/docs.jsonl "
                 "test/golden/docs.jsonl");
        CHECK_SH(0, "%s " ALL_DOCUMENTS " --dump-grads $W/after %s", program, arch, ways[i]);
        int changed = check_same_logits("before", "after", 4);
        CHECK(changed == 48 - 10);  // causal: end-of-text and the nine characters before the change see nothing of it
    }
}

CLAIM(packing_does_not_change_the_logits_of_a_document) {
    if (strstr(program, "--device cuda")) SKIP("cuBLASLt may choose another algorithm for another number of rows");
    sh("cp test/golden/docs.jsonl $W/docs.jsonl");
    CHECK_SH(0, "%s " ALL_DOCUMENTS " --dtype fp32 --dump-grads $W/wide", program, arch);
    CHECK_SH(0, "%s " ALL_DOCUMENTS " --dtype fp32 --capacity 48 --dump-grads $W/narrow", program, arch);
    CHECK(check_same_logits("wide", "narrow", -1) == 0);
}

static const char* hash_of(const char* options) {
    CHECK_SH(0, "rm -rf $W/run && $P " GOLDEN_OPTIONS " --steps 3 --out $W/run %s", arch, starts_as, options);
    return loss_hash();
}

CLAIM(threads_and_recomputation_do_not_change_a_bit) {
    const char* dtypes[] = {"fp32", "bf16"};
    const char* ways[] = {"--recompute none",
                          "--threads 1",
                          "--threads 2",
                          "--threads 3",
                          "--recompute activation",
                          "--recompute block",
                          "--threads 1 --recompute block"};
    for (int d = 0; d < 2; d++) {
        char first[17] = "", options[200];
        for (int i = 0; i < COUNT(ways); i++) {
            if (says_nothing(ways[i])) continue;
            snprintf(options, sizeof options, "--dtype %s --capacity 128 %s", dtypes[d], ways[i]);
            if (i) CHECK_STRING(hash_of(options), first);
            else strcpy(first, hash_of(options));
        }
    }
}

static Shape shape_in(const char* dir) {
    static char text[1 << 14];
    char err[ERR_BYTES];
    Shape shape = {.L = 0};
    CHECK(hf_config_parse(&shape, text, read_text(filled("%s/config.json", dir), text, sizeof text), err) == 0);
    return shape;
}

// Its longest document (131072 for the Llama here) and the stretching of its positions are in no option.
CLAIM(a_model_leaves_a_run_as_it_came_but_for_its_training) {
    char init[64], tensors[2][700], name[64];
    snprintf(init, sizeof init, "test/golden/%s/init", arch);
    snprintf(tensors[0], sizeof tensors[0], "%s/model.safetensors", init);
    Shape before = shape_in(init);
    for (int steps = 0; steps <= 4; steps += 2) {
        if (steps < 4)
            CHECK_SH(0, "rm -rf $W/run && $P " GOLDEN_OPTIONS " --dtype fp32 --save-every 2 --steps %d --out $W/run",
                     arch, starts_as, steps);
        else CHECK_SH(0, "$P --resume --steps %d --out $W/run", steps);
        snprintf(name, sizeof name, "run/step-%06d", steps);
        snprintf(tensors[1], sizeof tensors[1], "%.600s/model.safetensors", path_of(name));
        Shape after = shape_in(path_of(name));
        CHECK(!memcmp(&before, &after, sizeof before));
        double different = tensors_differ(tensors[0], tensors[1], 1);
        CHECK(steps ? different > 0 && different < 1 : different == 0);
    }
}

int main(int argc, char** argv) {
    static const char* const archs[] = {"gpt2", "llama", "qwen2", "qwen3"};
    program_begin(argc, argv);
    for (int i = 0; i < COUNT(archs); i++) {
        arch = archs[i];
        printf("  %s\n", arch);
        read_golden("golden.json");
        run_claims();
    }
    return program_end();
}
