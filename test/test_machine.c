// test_machine.c - claims about plan/cost/machine.h: machines that are known by name have their published memory, a
// text is read exactly or refused with the line, and what is printed reads back to the same doubles. Texts lie in
// buffers of just their size, for AddressSanitizer.
#include "plan/search/machine_asked.h"

#include "test/test.h"

static char err[ERR_BYTES];
static Machine machine;

static int read_bytes(Machine* into, const char* text, size_t n) {
    char* exact = (char*)malloc(n ? n : 1);
    memcpy(exact, text, n);
    memset(err, 0, sizeof err);
    int bad = machine_parse(into, n ? exact : NULL, n, err);
    CHECK(bad ? err[0] && !strchr(err, '\n') : !err[0]);
    free(exact);
    return bad;
}

static int read_text(const char* text) { return read_bytes(&machine, text, strlen(text)); }

static void read_builtin(const char* name) {
    const char* text = machine_builtin(name);
    CHECK(text && read_text(text) == 0);
}

// Both are of machine_parse, or of random_machine, which fill all they have from zero.
static int same_machine(const Machine* a, const Machine* b) {
    static Machine x, y;
    x = *a, y = *b;
    x.cost.kv_channels = y.cost.kv_channels = 0;  // those of queries unless the text says
    return a->cost.kv_channels == b->cost.kv_channels && !memcmp(&x, &y, sizeof x);
}

// Prints, reads, compares.
static int survives_printing(const Machine* before) {
    static Machine after;
    size_t n = machine_print(before, NULL, 0);
    char* text = (char*)malloc(n + 1);
    CHECK(machine_print(before, text, n + 1) == n && strlen(text) == n);
    int same = read_bytes(&after, text, n) == 0 && same_machine(before, &after);
    if (!same) printf("%s    %s\n", text, err);
    free(text);
    return same;
}

// ---- machines by name

CLAIM(every_name_stands_for_its_machine) {
    char names[256];
    int n = 0;
    snprintf(names, sizeof names, "%s", machine_names());
    for (char* name = strtok(names, ", "); name; name = strtok(NULL, ", "), n++) {
        read_builtin(name);
        CHECK_STRING(machine.cost.name, name);
        CHECK(survives_printing(&machine));
    }
    CHECK(n == 5 && !strstr(machine_names(), "hydraulis"));  // nothing can be planned on those
    read_builtin("hydraulis-7b");
    CHECK(survives_printing(&machine));
    CHECK(!machine_builtin("") && !machine_builtin("flexsp") && !machine_builtin("flexsp-7") && !machine_builtin("x"));
    read_builtin("flexsp-30b");
    CHECK(machine.heads == 64 && machine.cost.round == 2789.3644 && machine.cost.token_bytes == 4 * 2 * 60 * 6656 * 2);
    read_builtin("a100-7b");
    CHECK(machine.heads == 0 && machine.capacity == 6451 && machine.cost.n_groups == 6);
    read_builtin("h200-8b");
    CHECK(machine.heads == 0 && machine.capacity == 24576 && machine.cost.n_groups == 8);
}

CLAIM(flexsp_ranks_hold_the_published_tokens) {
    // Parameters grow with the context, because positions are a learned table.
    static const struct {
        const char* name;
        double gb, parameters_192k, parameters_384k;
        int tokens_192k, tokens_384k;
    } golden[] = {{"flexsp-7b", 30, 7.117, 7.850, 6449, 6407},
                  {"flexsp-7b", 28, 7.117, 7.850, 5992, 5950},
                  {"flexsp-13b", 30, 13.116, 14.032, 6483, 6427},
                  {"flexsp-30b", 30, 31.525, 32.715, 6627, 6538}};
    for (int i = 0; i < COUNT(golden); i++) {
        read_builtin(golden[i].name);
        CHECK(machine.memory_gb == 30 && machine.parameters == golden[i].parameters_192k);
        machine.memory_gb = golden[i].gb;
        CHECK(machine_capacity(&machine, 64, 3) == golden[i].tokens_192k);
        machine.parameters = golden[i].parameters_384k;
        CHECK(machine_capacity(&machine, 64, 3) == golden[i].tokens_384k);
    }
    read_builtin("flexsp-7b");
    machine.memory_gb = 28;
    CHECK(64 * machine_capacity(&machine, 64, 3) == 383488);
    machine.parameters = 7.850;
    CHECK(64 * machine_capacity(&machine, 64, 3) == 380800);
    // ZeRO-2: (30 - 7.117 (2 + 16 / 64)) 1024 / 4.480442; ZeRO-1 holds 6 bytes a parameter besides 12 / 64: 44 GB.
    CHECK(machine_parse(&machine, machine_builtin("flexsp-7b"), strlen(machine_builtin("flexsp-7b")), err) == 0);
    CHECK(machine_capacity(&machine, 64, 2) == 3196 && machine_capacity(&machine, 64, 1) < 1);
    CHECK(machine_capacity(&machine, 3, 3) < 1);  // 16 bytes a parameter on 4 ranks
}

// By hand: 2^30 parameters in 4 layers on 8 ranks of 2 nodes; 3/4 of a layer goes to others of the node, 4 bytes of
// each gradient, 2 of each weight.
CLAIM(zero_moves_the_parameters_that_a_machine_names) {
    const char* text = "name x\nquadratic_ms 1\nlinear_ms 1\nmemory 40 1 8\ntoken_bytes 1\ngroup 4 100\ngroup 8 50\n";
    CHECK(machine_parse(&machine, text, strlen(text), err) == 0);
    double part = 3 / 4. * (1 << 28);
    WeightTimes w = machine_weights(&machine, 3, 8, 4, 4);
    CHECK(w.layers == 4 && w.zero == 3 && w.across);
    CHECK_CLOSE(w.reduce[WEIGHTS_LAYER], 4 * part / 100e6, 1e-9);
    CHECK_CLOSE(w.gather[WEIGHTS_LAYER], 2 * part / 100e6, 1e-9);
    CHECK(machine_weights(&machine, 3, 1, 4, 4).layers == 0);
    machine.cost.round = 3;  // measured with what ZeRO moves
    CHECK(machine_weights(&machine, 3, 8, 4, 4).layers == 0 && machine_weights(&machine, 1, 8, 4, 4).layers == 4);
    machine.cost.step = 3;
    CHECK(machine_weights(&machine, 1, 8, 4, 4).layers == 0);
    read_builtin("h200-8b");  // says no parameters
    CHECK(machine_weights(&machine, 3, 8, 8, 32).layers == 0);
}

static const Scheme* scheme_of(const char* name) {
    for (int i = 0; i < machine.n_schemes; i++)
        if (!strcmp(machine.schemes[i].name, name)) return &machine.schemes[i];
    CHECK(!"a scheme of this name");
    return &machine.schemes[0];
}

CLAIM(hydraulis_replicas_hold_the_published_tokens) {
    // 32B; optimizer state in the layouts (4, 16, 1) and, where known, (64, 16, 1). Those of (1, 4, 2) were worked out
    // by hand in fractions: a pipeline's end holds one embedding, not both. 0: no room.
    static const struct {
        const char* name;
        int dp, tp, pp, tokens;
    } golden[] = {{"TP16", 4, 16, 1, 43520},   {"TP8", 4, 16, 1, 21888},    {"TP8PP2", 4, 16, 1, 25856},
                  {"TP8PP3", 4, 16, 1, 27264}, {"TP8PP4", 4, 16, 1, 27904}, {"TP4", 4, 16, 1, 7808},
                  {"TP4PP2", 4, 16, 1, 12416}, {"TP4PP4", 4, 16, 1, 14592}, {"TP2PP2", 4, 16, 1, 3968},
                  {"TP2PP4", 4, 16, 1, 6272},  {"TP1PP4", 4, 16, 1, 1920},  {"TP16", 64, 16, 1, 48256},
                  {"TP8", 64, 16, 1, 24704},   {"TP4", 64, 16, 1, 9472},    {"TP4PP2", 64, 16, 1, 13952},
                  {"TP8", 1, 4, 2, 768},       {"TP4PP4", 1, 4, 2, 2688},   {"TP16", 1, 4, 2, 8064},
                  {"TP1PP4", 1, 4, 2, -1152},  {"TP2", 4, 16, 1, 0},        {"TP1PP2", 4, 16, 1, 0}};
    read_builtin("hydraulis-32b");
    CHECK(machine.n_schemes == 15 && scheme_of("TP4PP6")->pp == 6 && scheme_of("TP1PP2")->quadratic == 0);
    for (int i = 0; i < COUNT(golden); i++) {
        int tokens =
            (int)machine_scheme_tokens(&machine, scheme_of(golden[i].name), golden[i].dp, golden[i].tp, golden[i].pp);
        CHECK(golden[i].tokens ? tokens == golden[i].tokens : tokens < 1);
    }
    // No bytes of activations are known for 3 tensor-parallel ranks, nor for 32.
    CHECK(machine_scheme_tokens(&machine, &(Scheme){.tp = 3, .pp = 1}, 4, 16, 1) < 1);
    CHECK(machine_scheme_tokens(&machine, &(Scheme){.tp = 32, .pp = 1}, 4, 16, 1) < 1);
    read_builtin("hydraulis-7b");
    CHECK(machine.n_schemes == 4 && scheme_of("TP16")->fixed == 65.236);
    for (int i = 0; i < machine.n_schemes; i++)
        CHECK(machine_scheme_tokens(&machine, &machine.schemes[i], 4, 4, 1) > 0);
}

CLAIM(heads_of_no_model_divide_by_every_small_cp_size) {
    read_builtin("a100-7b");
    for (int d = 1; d <= 16; d++) CHECK(machine_heads(&machine) % d == 0);
    for (int d = 16; d <= 1024; d *= 2) CHECK(machine_heads(&machine) % d == 0);
    for (int d = 1; d <= 1024; d++)
        CHECK_CLOSE((double)CEIL_DIV(machine_heads(&machine), d) * d / machine_heads(&machine), 1, 1e-4);
    read_builtin("flexsp-7b");
    CHECK(machine_heads(&machine) == 64);
}

CLAIM(a_setting_has_the_limits_of_its_machine) {
    static GroupCost groups[65];
    Setting setting;
    read_builtin("flexsp-7b");
    CHECK(machine_setting(&setting, &machine, 64, 8, 196608, groups, err) == 0);
    CHECK(setting.limits.ranks == 64 && setting.limits.node_size == 8 && setting.limits.capacity == 6449);
    CHECK(setting.limits.kv_heads == 64 && setting.limits.quadratic == 5.128e-6 / 0.1839576 &&
          setting.context == 196608);
    CHECK(setting.groups == groups && !setting.speeds && setting.kind == CP_CHOICE_AUTO &&
          setting.cost.link_scale == 1);
    CHECK(groups[64].cp_size == 64 && groups[64].canonical && !groups[12].canonical && groups[8].room == 8 * 6449);
    CHECK(machine_setting(&setting, &machine, 0, 8, 196608, groups, err) < 0 && strstr(err, "0 ranks"));
    CHECK(machine_setting(&setting, &machine, 8, 0, 196608, groups, err) < 0);
    CHECK(machine_setting(&setting, &machine, 8, 8, 0, groups, err) < 0);
    CHECK(machine_setting(&setting, &machine, 3, 8, 196608, groups, err) < 0 && strstr(err, "more ranks"));
    read_builtin("a100-7b");
    machine.capacity = 0;
    CHECK(machine_setting(&setting, &machine, 8, 8, 4096, groups, err) < 0 && strstr(err, "capacity"));
    read_builtin("hydraulis-32b");
    CHECK(machine_setting(&setting, &machine, 8, 8, 4096, groups, err) < 0 && strstr(err, "pipelines"));
}

// ---- texts

static const char whole[] =
    "name box # a word\n"
    "quadratic_ms 5e-6\nlinear_ms .25\nmicro_batch_ms 1.5\nstep_ms 20\nround_ms 3\nheads 12\ncapacity 4096\n"
    "model 12 768 2\nlink inside 1024 0.01\nlink across 1024 0.05\nlink inside 65536 0.012\nlink across 65536 0.5\n"
    "kv_channels 256\nlink_scale 0.75\npipeline_memory 60 6656 30592 201 0.75 10240 5000 81252 36 0 37 42 50\n"
    "scheme TP8PP2 8 2 1.06789378e-6 0.071058246 61.768\nscheme A 1 1 0 0 0\n";

CLAIM(every_key_is_read_into_its_place) {
    CHECK(read_text(whole) == 0);
    const Cost* c = &machine.cost;
    CHECK_STRING(c->name, "box");
    CHECK(c->quadratic == 5e-6 && c->per_token == 0.25 && c->micro_batch == 1.5 && c->step == 20 && c->round == 3);
    CHECK(machine.heads == 12 && machine.capacity == 4096 && c->layers == 12 && c->channels == 768);
    CHECK(c->kv_channels == 256 && c->elem_bytes == 2 && c->link_scale == 0.75 && c->n_groups == 0);
    CHECK(c->link[LINK_INSIDE].n == 2 && c->link[LINK_INSIDE].bytes[1] == 65536 && c->link[LINK_INSIDE].ms[1] == 0.012);
    CHECK(c->link[LINK_ACROSS].n == 2 && c->link[LINK_ACROSS].bytes[0] == 1024 && c->link[LINK_ACROSS].ms[0] == 0.05);
    CHECK(machine.layers == 60 && machine.hidden == 6656 && machine.vocabulary == 30592 && machine.state_bytes == 201);
    CHECK(machine.alpha == 0.75 && machine.safety_mib == 10240 && machine.fixed_mib == 5000 &&
          machine.gpu_mib == 81252);
    CHECK(machine.activation[0] == 36 && machine.activation[1] == 0 && machine.activation[4] == 50);
    CHECK(machine.n_schemes == 2 &&
          !memcmp(&machine.schemes[0], &(Scheme){"TP8PP2", 8, 2, 1.06789378e-6, 0.071058246, 61.768}, sizeof(Scheme)));
    CHECK_STRING(machine.schemes[1].name, "A");
    CHECK(read_text("name b\nquadratic_ms 0\nlinear_ms 1\nmodel 12 768 2\n") == 0 && c->kv_channels == 768);
    CHECK(read_text(
              "name b\nquadratic_ms 0\nlinear_ms 1\nmemory 30 7 4.5\ntoken_bytes 2e6\ngroup 2 120\ngroup 8 9.5\n") ==
          0);
    CHECK(machine.memory_gb == 30 && machine.parameters == 7 && machine.token_mb == 4.5 && machine.capacity == 0);
    CHECK(machine.cost.token_bytes == 2e6 && machine.cost.n_groups == 2 && machine.cost.link_scale == 1);
    CHECK(machine.cost.group_cp_size[1] == 8 && machine.cost.group_gbps[1] == 9.5 && machine.cost.group_gbps[0] == 120);
}

CLAIM(kinds_of_ranks_begin_where_they_are_named) {
    CHECK(read_text("name m; linear_ms 1; quadratic_ms 0; ranks 8 0.5 40; ranks 24 2 0; ranks 32 1 16") == 0);
    CHECK(machine.n_kinds == 3);
    CHECK(machine_speed(&machine, 0, 8) == 1 && machine_speed(&machine, 7, 2) == 0.5);
    CHECK(machine_speed(&machine, 8, 16) == 0.5 && machine_speed(&machine, 24, 8) == 2);
    CHECK(machine_speed(&machine, 24, 9) == 1 && machine_speed(&machine, 0, 100) == 0.5);
    CHECK(machine_bytes(&machine, 0, 8) == INFINITY && machine_bytes(&machine, 24, 8) == INFINITY);
    CHECK(machine_bytes(&machine, 8, 1) == 40.0 * (1 << 30) && machine_bytes(&machine, 0, 100) == 16.0 * (1 << 30));
    Machine part = machine_part(&machine, 8, 16);
    CHECK(part.memory_gb == 40 && machine_part(&machine, 24, 8).memory_gb == machine.memory_gb);
    CHECK(read_text("name m; linear_ms 1; quadratic_ms 0; memory 30 1 2; ranks 0 1 0; ranks 8 1 20") == 0);
    part = machine_part(&machine, 4, 8);  // 16 GB of states on one rank: 4 GB, 2048 tokens of 2 MB
    CHECK(machine_capacity(&part, 1, 3) == 2048 && machine_capacity(&machine, 1, 3) == 7168);
    CHECK(read_text("name m; linear_ms 1; quadratic_ms 0; ranks 8 0.5 40; ranks 8 1 0") == -1);
    CHECK(read_text("name m; linear_ms 1; quadratic_ms 0; ranks 8 0 40") == -1);
}

CLAIM(blanks_comments_and_order_do_not_matter) {
    static Machine plain;
    const char* text = "name box\nquadratic_ms 1\nlinear_ms 2\nheads 3\n";
    CHECK(read_bytes(&plain, text, strlen(text)) == 0);
    static const char* const same[] = {
        "name box\nquadratic_ms 1\nlinear_ms 2\nheads 3",
        "heads 3\nlinear_ms 2\nname box\nquadratic_ms 1\n",
        "\n\n# words\n  name\tbox\r\nquadratic_ms 1\r\n\r\nlinear_ms 2\r\nheads 3\r\n\n",
        "name box#x\nquadratic_ms 1.0e0 # heads 4\n#linear_ms 7\nlinear_ms +2.\nheads 3e0 #\n \t \n",
    };
    for (int i = 0; i < COUNT(same); i++) CHECK(read_text(same[i]) == 0 && same_machine(&plain, &machine));
}

// ---- printing

// Doubles of every size that a file may hold, with all bits of the mantissa.
CLAIM(printing_and_reading_gives_the_same_doubles) {
    Cost* c = &machine.cost;
    Machine* m = &machine;
    double* const of_cost[] = {&c->quadratic, &c->per_token, &c->micro_batch, &c->step, &c->round, &c->link_scale};
    double* const others[] = {&c->link[0].ms[1], &m->hidden,        &m->vocabulary,           &m->state_bytes,
                              &m->gpu_mib,       &m->activation[3], &m->schemes[0].quadratic, &m->schemes[1].linear};
    for (uint64_t seed = 0; seed < 1000; seed++) {
        CHECK(read_text(whole) == 0);
        for (uint64_t i = 0; i < COUNT(of_cost) + COUNT(others); i++)
            *(i < COUNT(of_cost) ? of_cost[i] : others[i - COUNT(of_cost)]) +=
                exp(30 * random_uniform(seed, 2 * i)) * random_uniform(seed, 2 * i + 1);
        CHECK(survives_printing(&machine));
    }
}

int main(void) { return test_main(); }
