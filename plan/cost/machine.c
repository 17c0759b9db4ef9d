// machine.c - machine files: one table of keys, by which they are read, checked and written.
//
// A key fills fields of Machine. Keys that may come several times (group, link, scheme) fill the next elements of
// arrays. Memory of a tensor x pipeline replica is Hydraulis' formula (Li et al. 2024, released code), in bytes, beside
// optimizer state in the layout (dp_o, tp_o, pp_o), for L layers, H channels, V words:
//   states = L / pp_o H^2 / tp_o B alpha / dp_o + L / pp H^2 / tp B (1 - alpha)
//          + H V / tp_o e_o alpha / dp_o + H V / tp e (1 - alpha),   e = 32 where that pp is 1, else 16
//   tokens = (gpu - safety - fixed - states) / (L H / tp A),   rounded down to a multiple of 128
// Its constants are a line: pipeline_memory L H V B alpha, safety fixed gpu in MiB, A at tp = 1 2 4 8 16 (0: unknown).
#include "plan/cost/machine.h"

#include <limits.h>
#include <math.h>

#include "plan/base/words.h"
#include "plan/model/split.h"

// ---- the table

enum { MOST_FIELDS = 13, MOST_TOKENS = 1 << 30 };
#define LARGE 1e15  // products of a few of these are finite
#define SMALL 1e-9  // least value of a divisor

typedef struct Key {
    const char* name;
    const char* values;  // description for messages
    Field fields[MOST_FIELDS];
    enum { OPTIONAL, REQUIRED, SEVERAL } occurs;
    const char* second;  // second word of the key, after its name; NULL: it has one
    // SEVERAL: place of their number, the most of them, and distance between elements. A line's first field exceeds
    // that of the line before; the first `ordered` are no less.
    size_t count_at;
    int most, ordered;
    size_t stride[2];  // distance of the first field, of the others
} Key;

#define AT(field) offsetof(Machine, field)
#define WORD(field, most) \
    { "", NAME, AT(field), 1, most, NULL }
#define WHOLE(field, least, most) \
    { "", INT, AT(field), least, most, NULL }
#define FROM(least, field) \
    { "", REAL, AT(field), least, LARGE, NULL }
#define REALS(field) FROM(0, field)
#define TABLE(name, field, word)                                                                             \
    {                                                                                                        \
        name, "bytes, ms", {REALS(cost.field.bytes), REALS(cost.field.ms)}, SEVERAL, word, AT(cost.field.n), \
            LINK_POINTS, 2, {                                                                                \
            sizeof(double), sizeof(double)                                                                   \
        }                                                                                                    \
    }

// clang-format off
static const Key keys[] = {
    {"name", "a word", {WORD(cost.name, COST_NAME - 1)}, .occurs = REQUIRED},
    {"quadratic_ms", "ms a token^2", {REALS(cost.quadratic)}, .occurs = REQUIRED},
    {"linear_ms", "ms a token", {REALS(cost.per_token)}, .occurs = REQUIRED},
    {"micro_batch_ms", "ms a micro-batch", {REALS(cost.micro_batch)}, .occurs = OPTIONAL},
    {"step_ms", "ms a step", {REALS(cost.step)}, .occurs = OPTIONAL},
    {"round_ms", "ms a round", {REALS(cost.round)}, .occurs = OPTIONAL},
    {"heads", "heads of the model's keys", {WHOLE(heads, 0, 1 << 20)}, .occurs = OPTIONAL},
    {"capacity", "tokens of a rank", {WHOLE(capacity, 0, MOST_TOKENS)}, .occurs = OPTIONAL},
    {"device", "GiB, GB/s of a checkpoint", {FROM(SMALL, device_gib), REALS(save_gbps)}, .occurs = OPTIONAL},
    {"memory", "GB, parameters / 2^30, MB a token", {REALS(memory_gb), REALS(parameters), FROM(SMALL, token_mb)},
        .occurs = OPTIONAL},
    {"model", "layers, channels of queries, bytes of an element",
        {WHOLE(cost.layers, 1, 1 << 20), WHOLE(cost.channels, 1, 1 << 26), WHOLE(cost.elem_bytes, 1, 8)},
        .occurs = OPTIONAL},
    {"kv_channels", "channels of keys", {WHOLE(cost.kv_channels, 1, 1 << 26)}, .occurs = OPTIONAL},
    {"link_scale", "a factor", {REALS(cost.link_scale)}, .occurs = OPTIONAL},
    {"again", "a share", {REALS(again)}, .occurs = OPTIONAL},
    {"overlap", "a factor", {FROM(1, overlap)}, .occurs = OPTIONAL},
    {"node", "ranks of a node", {WHOLE(cost.node, 0, 1 << 20)}, .occurs = OPTIONAL},
    {"nics", "NICs of a node", {WHOLE(cost.nics, 0, 1 << 20)}, .occurs = OPTIONAL},
    {"token_bytes", "bytes a token", {REALS(cost.token_bytes)}, .occurs = OPTIONAL},
    {"group", "cp size, GB/s of a rank", {WHOLE(cost.group_cp_size, 2, 1 << 30), FROM(SMALL, cost.group_gbps)},
        SEVERAL, NULL, AT(cost.n_groups), COST_GROUPS, 1, {sizeof(int), sizeof(double)}},
    TABLE("link", link[LINK_INSIDE], "inside"),
    TABLE("link", link[LINK_ACROSS], "across"),
    TABLE("sum", sum[LINK_INSIDE], "inside"),
    TABLE("sum", sum[LINK_ACROSS], "across"),
    {"ranks", "the first, pace, GiB", {WHOLE(kind_first, 0, 1 << 30), FROM(1e-3, kind_speed), REALS(kind_gib)}, SEVERAL,
        NULL, AT(n_kinds), MACHINE_KINDS, 1, {sizeof(int), sizeof(double)}},
    {"tp", "ranks of a group, ms a token, a token^2, a row",
        {WHOLE(tp, 2, MOST_TP), REALS(tp_token), REALS(tp_pair), REALS(tp_row)}, SEVERAL, NULL, AT(n_tp), MACHINE_TP, 1,
        {sizeof(int), sizeof(double)}},
    {"pipeline_memory", "layers, width, vocabulary, B, alpha, 3 sizes in MiB, A at tp 1 2 4 8 16",
        {FROM(1, layers), FROM(1, hidden), REALS(vocabulary), REALS(state_bytes), {"", REAL, AT(alpha), 0, 1, NULL},
         REALS(safety_mib), REALS(fixed_mib), REALS(gpu_mib), REALS(activation[0]), REALS(activation[1]),
         REALS(activation[2]), REALS(activation[3]), REALS(activation[4])}, .occurs = OPTIONAL},
    {"scheme", "name, tensor and pipeline ranks, ms a token^2, a token, a micro-batch",
        {WORD(schemes[0].name, SCHEME_NAME - 1), WHOLE(schemes[0].tp, 1, 1 << 15), WHOLE(schemes[0].pp, 1, 1 << 15),
         REALS(schemes[0].quadratic), REALS(schemes[0].linear), REALS(schemes[0].fixed)},
        SEVERAL, NULL, AT(n_schemes), MACHINE_SCHEMES, 0, {sizeof(Scheme), sizeof(Scheme)}},
};
// clang-format on
_Static_assert(sizeof keys / sizeof *keys <= 64, "a set of keys is a uint64_t");

// The values of keys that the text leaves out.
static const Machine standard = {.cost = {.link_scale = 1}};

static int* count_of(const Machine* machine, const Key* key) { return (int*)((char*)machine + key->count_at); }

static int fields_of(const Key* key) {
    int n = 0;
    while (n < MOST_FIELDS && key->fields[n].name) n++;
    return n;
}

// Field i of an element.
static Field field_at(const Key* key, int i, int element) {
    Field field = key->fields[i];
    field.at += (size_t)element * key->stride[i > 0];
    return field;
}

static double number_at(const Machine* machine, const Key* key, int i, int element) {
    Field field = field_at(key, i, element);
    const void* at = (const char*)machine + field.at;
    return field.type == INT ? *(const int*)at : *(const double*)at;
}

// ---- reading

// Takes the key's one or two words.
static const Key* read_name(Words* line) {
    Word name = {NULL, 0}, second = {NULL, 0};
    words_next(line, ' ', &name);
    Words rest = *line;
    words_next(&rest, ' ', &second);
    for (const Key* key = keys; key < keys + COUNT(keys); key++) {
        if (!word_is(name, key->name) || (key->second && !word_is(second, key->second))) continue;
        if (key->second) *line = rest;
        return key;
    }
    return NULL;
}

static int read_fields(Machine* machine, const Key* key, int element, Words* line) {
    char wanted[WANTED];
    Word word = {NULL, 0};
    int i = 0, n = fields_of(key);
    for (; words_next(line, ' ', &word); i++) {
        if (i == n) return words_refuse(line, word, "expected %d value%s: %s", n, n == 1 ? "" : "s", key->values);
        Field field = field_at(key, i, element);
        if (field_set(&field, machine, word, wanted))
            return words_refuse(line, word, "expected %s (%s)", wanted, key->values);
        if (element == 0 || i >= key->ordered) continue;
        double last = number_at(machine, key, i, element - 1), next = number_at(machine, key, i, element);
        if (next < last || (i == 0 && next == last))
            return words_refuse(line, word, "expected %s %.15g (%s)", i ? "at least" : "more than", last, key->values);
    }
    if (i == n) return 0;
    return words_refuse(line, (Word){NULL, 0}, "expected %d value%s: %s", n, n == 1 ? "" : "s", key->values);
}

static int read_line(Machine* machine, Words* line, uint64_t* given) {
    const Key* key = read_name(line);
    if (!key) return words_refuse(line, line->all, "expected a key of a machine file (see plan/cost/machine.h)");
    int several = key->occurs == SEVERAL, element = several ? *count_of(machine, key) : 0;
    uint64_t bit = (uint64_t)1 << (key - keys);
    if (!several && *given & bit) return words_refuse(line, line->all, "expected %s once", key->name);
    if (several && element == key->most)
        return words_refuse(line, line->all, "expected %s at most %d times", key->name, key->most);
    *given |= bit;
    if (read_fields(machine, key, element, line)) return -1;
    if (several) *count_of(machine, key) = element + 1;
    return 0;
}

// Finds errors that concern several lines.
static int check_whole(const Words* text, const Machine* machine, uint64_t given) {
    const Cost* cost = &machine->cost;
    const char* wrong = NULL;
    Word end = {NULL, 0};
    int links = cost->link[LINK_INSIDE].n + cost->link[LINK_ACROSS].n;
    for (int i = 0; i < COUNT(keys); i++)
        if (keys[i].occurs == REQUIRED && !(given >> i & 1))
            return words_refuse(text, end, "expected %s (%s)", keys[i].name, keys[i].values);
    if (machine->capacity && machine->token_mb > 0) wrong = "one of capacity and memory, found both";
    if (links && cost->n_groups) wrong = "group or link lines, found both";
    if (cost->sum[LINK_ACROSS].n && !cost->sum[LINK_INSIDE].n) wrong = "sum inside beside sum across";
    if (links && !cost->layers) wrong = "with link lines the model whose messages they are";
    if ((cost->token_bytes > 0) != (cost->n_groups > 0)) wrong = "token_bytes and group lines, or neither";
    return wrong ? words_refuse(text, end, "expected %s", wrong) : 0;
}

int machine_parse(Machine* machine, const char* text, size_t n, Err err) {
    Words words = words_of(text, n, err), line;
    uint64_t given = 0;
    *machine = standard;
    while (words_statement(&words, &line))
        if (read_line(machine, &line, &given)) return -1;
    if (!machine->cost.kv_channels) machine->cost.kv_channels = machine->cost.channels;
    return check_whole(&words, machine, given);
}

// ---- writing

static int is_standard(const Machine* machine, const Key* key) {
    for (int i = 0; i < fields_of(key); i++)
        if (number_at(machine, key, i, 0) != number_at(&standard, key, i, 0)) return 0;
    return 1;
}

size_t machine_print(const Machine* machine, char* text, size_t bytes) {
    char value[64];
    size_t n = 0;
    for (const Key* key = keys; key < keys + COUNT(keys); key++) {
        int lines = key->occurs == OPTIONAL ? !is_standard(machine, key) : 1;
        if (key->occurs == SEVERAL) lines = *count_of(machine, key);
        for (int line = 0; line < lines; line++) {
            text_append(text, bytes, &n, "%s%s%s", key->name, key->second ? " " : "", key->second ? key->second : "");
            for (int i = 0; i < fields_of(key); i++) {
                Field field = field_at(key, i, line);
                field_print(&field, machine, value, sizeof value);
                text_append(text, bytes, &n, " %s", value);
            }
            text_append(text, bytes, &n, "\n");
        }
    }
    return n;
}

// ---- what follows from the constants

int machine_capacity(const Machine* machine, int ranks, int zero) {
    if (machine->capacity) return machine->capacity;
    if (machine->token_mb <= 0) return 0;
    double bytes = zero == 1 ? 6 + 12.0 / ranks : zero == 2 ? 2 + 16.0 / ranks : 16.0 / ranks;
    double states = machine->parameters * 1024 * bytes;
    double tokens = floor((machine->memory_gb * 1024 - states) / machine->token_mb);
    return (int)MAX(MIN(tokens, MOST_TOKENS), -MOST_TOKENS);
}

int machine_has_weights(const Machine* machine, int zero) {
    return zero == 1 ? machine->cost.step > 0 : machine->cost.round > 0;
}

// The least of what kinds of these ranks have (0: unknown), and of `others`, what ranks without a kind have.
static double least_of_kinds(const Machine* m, const double* has, double others, int first, int n) {
    double least = others;
    for (int k = 0; k < m->n_kinds; k++) {
        int end = k + 1 < m->n_kinds ? m->kind_first[k + 1] : INT_MAX;
        if (first < end && first + n > m->kind_first[k] && has[k] > 0) least = MIN(least, has[k]);
    }
    return least;
}

// Ranks before the first named kind are at full pace.
double machine_speed(const Machine* m, int first, int n) {
    int some_have_none = m->n_kinds == 0 || first < m->kind_first[0];
    return least_of_kinds(m, m->kind_speed, some_have_none ? 1 : INFINITY, first, n);
}

double machine_bytes(const Machine* m, int first, int n) {
    return least_of_kinds(m, m->kind_gib, INFINITY, first, n) * (1 << 30);
}

Machine machine_part(const Machine* machine, int first, int n) {
    Machine part = *machine;
    double bytes = machine_bytes(machine, first, n);
    if (bytes < INFINITY) part.memory_gb = bytes / (1 << 30);
    return part;
}

double machine_parameters(const Machine* machine) {
    double layer = machine->state_bytes / 16 * machine->hidden * machine->hidden;
    if (machine->parameters > 0) return machine->parameters * (1 << 30);
    return machine->n_schemes > 0 ? machine->layers * layer + 2 * machine->vocabulary * machine->hidden : 0;
}

const Scheme* machine_scheme(const Machine* machine, int tp, int pp) {
    for (const Scheme* s = machine->schemes; s < machine->schemes + machine->n_schemes; s++)
        if (s->tp == tp && s->pp == pp) return s;
    return NULL;
}

int machine_scheme_tokens(const Machine* machine, const Scheme* scheme, int dp, int tp, int pp) {
    double L = machine->layers, H = machine->hidden, V = machine->vocabulary, alpha = machine->alpha, A = 0;
    for (int i = 0; i < COUNT(machine->activation); i++)
        if (scheme->tp == 1 << i) A = machine->activation[i];
    if (A == 0) return 0;
    double matrices = L / pp * (H * H / tp) * machine->state_bytes * alpha / dp +
                      L / scheme->pp * (H * H / scheme->tp) * machine->state_bytes * (1 - alpha);
    double embeddings =
        H * V / tp * (pp == 1 ? 32 : 16) * alpha / dp + H * V / scheme->tp * (scheme->pp == 1 ? 32 : 16) * (1 - alpha);
    double room = (machine->gpu_mib - machine->safety_mib - machine->fixed_mib) * 1024 * 1024 - matrices - embeddings;
    double tokens = 128 * floor(room / (L * (H / scheme->tp) * A) / 128);
    return (int)MAX(MIN(tokens, MOST_TOKENS), -MOST_TOKENS);
}

// ---- machines whose constants are published

// FlexSP's all-to-all on 8 nodes of 8 A100-40GB, counted there in 2^20 bytes a ms: 119.54, 104.07, 96.5, 10.33, 5.94,
// 4.87, here times 1.048576.
// clang-format off
#define FLEXSP_LINKS \
    "device 40 20 # GB/s to the host: PCIe 4, estimated\n" \
    "node 8; group 2 125.34677504; group 4 109.12530432; group 8 101.187584\n" \
    "group 16 10.83179008; group 32 6.22854144; group 64 5.10656512\n"
#define HYDRAULIS_LINKS \
    "# Links are assumed, not published, for weights and gradients alone: NVLink of 200 GB/s each way, a NIC of\n" \
    "# 200 Gbit/s a GPU.\n" \
    "link inside 0 0.02; link inside 1000000000 5.02\n" \
    "link across 0 0.03; link across 1000000000 40.03\n"
#define HYDRAULIS_32B \
    "# Hydraulis (Li et al., SIGMOD 2026, arXiv 2412.07894), profiled constants of its artefact: 60 layers of width " \
    "6656,\n" \
    "# A800-80GB. Replicas of tensor-parallel times pipeline ranks; a rank alone holds none, and has no times.\n" \
    "quadratic_ms 0; linear_ms 0; heads 64\n" \
    "pipeline_memory 60 6656 30592 201 0.75 10240 5000 81252 36 36 37 42 50\n" \
    "scheme TP16 16 1 1.37779723e-6 0.102435387 145.748\n" \
    "scheme TP8 8 1 2.12548718e-6 0.141411593 122.910\n" \
    "scheme TP8PP2 8 2 1.06789378e-6 0.071058246 61.768\n" \
    "scheme TP8PP3 8 3 6.85518086e-7 0.0482754236 38.070\n" \
    "scheme TP8PP4 8 4 4.91076016e-7 0.0370804063 25.442\n" \
    "scheme TP4 4 1 3.86950049e-6 0.238996833 120.695\n" \
    "scheme TP4PP2 4 2 2.04563898e-6 0.118301177 65.424\n" \
    "scheme TP4PP4 4 4 1.05779156e-6 0.0592119769 35.335\n" \
    "scheme TP4PP6 4 6 7.02993498e-7 0.0398508980 24.072\n" \
    "scheme TP2 2 1 2.97455561e-5 0.386957078 156.201\n" \
    "scheme TP2PP2 2 2 3.73416233e-6 0.213060059 80.717\n" \
    "scheme TP2PP4 2 4 1.97033746e-6 0.106558744 42.945\n" \
    "scheme TP2PP6 2 6 1.31605318e-6 0.0718051676 28.616\n" \
    "scheme TP1PP2 1 2 0 0.48988971 22.882\n" \
    "scheme TP1PP4 1 4 9.39192752e-7 0.212596087 35.995\n"
#define HYDRAULIS_7B \
    "# as hydraulis-32b, 32 layers of width 4096\n" \
    "quadratic_ms 0; linear_ms 0\n" \
    "pipeline_memory 32 4096 30592 210 0.75 6144 5000 81252 38 39 42 48 61\n" \
    "scheme TP1PP2 1 2 1.37240947e-6 0.0946477810 15.047\n" \
    "scheme TP4 4 1 1.03043340e-6 0.0564777342 56.698\n" \
    "scheme TP8 8 1 5.06885473e-7 0.0366182377 44.317\n" \
    "scheme TP16 16 1 3.01808129e-7 0.0292311085 65.236\n"

static const char* const texts[] = {
    "name flexsp-7b\n"
    "# FlexSP (Wang et al., ASPLOS 2025, arXiv 2412.01523), constants of its released cost model: GPT-7B, 32 layers,\n"
    "# width 4096, A100-40GB. Memory: 30 GB, parameters at a context of 192K (384K: 7.850).\n"
    "quadratic_ms 5.128e-6; linear_ms 0.1839576; round_ms 629.3563; heads 64; memory 30 7.117 4.480442\n"
    "token_bytes 2097152 # 4 tensors, 2 ways, 32 layers of 4096 channels of 2 bytes\n" FLEXSP_LINKS,

    "name flexsp-13b\n"
    "# as flexsp-7b, 40 layers of width 5120 (384K: 14.032)\n"
    "quadratic_ms 9.2852e-6; linear_ms 0.3060189; round_ms 1132.5632; heads 64; memory 30 13.116 4.220439\n"
    "token_bytes 3276800\n" FLEXSP_LINKS,

    "name flexsp-30b\n"
    "# as flexsp-7b, 60 layers of width 6656 (384K: 32.715)\n"
    "quadratic_ms 15.4262e-6; linear_ms 0.8035742; round_ms 2789.3644; heads 64; memory 30 31.525 3.417382\n"
    "token_bytes 6389760\n" FLEXSP_LINKS,

    "name a100-7b\n"
    "# FlexSP's constants of a 7B model without its barrier, as a planner meets them: heads divide by any cp size,\n"
    "# 6451 tokens a rank, bandwidths rounded to groups of 2, 3 to 4, 5 to 8 ranks and so on.\n"
    "quadratic_ms 5.128e-6; linear_ms 0.1839576; heads 0; capacity 6451; token_bytes 2097152; node 8\n"
    "device 40 20 # GB/s to the host: PCIe 4, estimated\n"
    "group 2 119.66; group 4 104.22; group 8 96.5; group 16 10.33; group 32 5.94; group 64 4.87\n",

    "name h200-8b\n"
    "# An 8B model with a quarter as many key and value heads on nodes of 8 H200: start values, estimated from\n"
    "# measured matmul, NVLink and InfiniBand rates. token_bytes: 20480 of each of 32 layers, 2 ways.\n"
    "quadratic_ms 2.13e-6; linear_ms 0.080; heads 0; capacity 24576; token_bytes 1310720; node 8\n"
    "device 131 40 # 141 GB; GB/s to the host: PCIe 5, estimated\n"
    "group 2 372; group 4 324; group 8 300; group 16 40; group 32 38; group 64 35; group 128 30; group 256 26\n",

    "name hydraulis-32b\n" HYDRAULIS_32B,
    "name hydraulis-32b-links\n" HYDRAULIS_LINKS "model 60 6656 2\n" HYDRAULIS_32B,
    "name hydraulis-7b\n" HYDRAULIS_7B,
    "name hydraulis-7b-links\n" HYDRAULIS_LINKS "model 32 4096 2\n" HYDRAULIS_7B,
};
// clang-format on

const char* machine_names(void) { return "flexsp-7b, flexsp-13b, flexsp-30b, a100-7b, h200-8b"; }

// Every text begins with the line "name NAME".
const char* machine_builtin(const char* name) {
    size_t before = strlen("name "), n = strlen(name);
    for (int i = 0; i < COUNT(texts); i++)
        if (!strncmp(texts[i] + before, name, n) && texts[i][before + n] == '\n') return texts[i];
    return NULL;
}
