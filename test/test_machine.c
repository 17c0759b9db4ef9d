// test_machine.c - claims about plan/machine.h: machines that are known by name have their published memory, a text is
// read exactly or refused with the line, and what is printed reads back to the same doubles. Texts lie in buffers of
// just their size, for AddressSanitizer.
#include "plan/machine.h"

#include "test/test.h"

static char err[ERR_BYTES];
static Machine machine;

static int read_bytes(Machine* into, const char* text, size_t n) {
    char* exact = (char*)malloc(n ? n : 1);
    memcpy(exact, text, n);
    memset(err, 0, sizeof err);
    int bad = machine_parse(into, n ? exact : NULL, n, err, sizeof err);
    if (bad) CHECK(strncmp(err, "line ", 5) == 0 && !strchr(err, '\n'));
    else CHECK(!err[0]);
    free(exact);
    return bad;
}

static int read_text(const char* text) { return read_bytes(&machine, text, strlen(text)); }

static void read_builtin(const char* name) {
    const char* text = machine_builtin(name);
    CHECK(text && read_text(text) == 0);
}

static int same_link(const LinkTable* a, const LinkTable* b) {
    return a->n == b->n && !memcmp(a->bytes, b->bytes, sizeof a->bytes) && !memcmp(a->ms, b->ms, sizeof a->ms);
}

static int same_scheme(const Scheme* a, const Scheme* b) {
    return !strcmp(a->name, b->name) && a->tp == b->tp && a->pp == b->pp && a->quadratic == b->quadratic &&
           a->linear == b->linear && a->fixed == b->fixed;
}

static int same_cost(const Cost* a, const Cost* b) {
    return !strcmp(a->name, b->name) && a->quadratic == b->quadratic && a->per_token == b->per_token &&
           a->micro_batch == b->micro_batch && a->step == b->step && a->round == b->round &&
           a->link_scale == b->link_scale && a->token_bytes == b->token_bytes && a->n_groups == b->n_groups &&
           !memcmp(a->group_cp_size, b->group_cp_size, sizeof a->group_cp_size) &&
           !memcmp(a->group_gbps, b->group_gbps, sizeof a->group_gbps) && same_link(&a->link[0], &b->link[0]) &&
           same_link(&a->link[1], &b->link[1]) && a->layers == b->layers && a->channels == b->channels &&
           a->kv_channels == b->kv_channels && a->elem_bytes == b->elem_bytes;
}

static int same_machine(const Machine* a, const Machine* b) {
    int same = same_cost(&a->cost, &b->cost) && a->heads == b->heads && a->capacity == b->capacity &&
               a->memory_gb == b->memory_gb && a->parameters == b->parameters && a->token_mb == b->token_mb &&
               a->n_schemes == b->n_schemes && a->layers == b->layers && a->hidden == b->hidden &&
               a->vocabulary == b->vocabulary && a->state_bytes == b->state_bytes && a->alpha == b->alpha &&
               !memcmp(a->activation, b->activation, sizeof a->activation) && a->safety_mib == b->safety_mib &&
               a->fixed_mib == b->fixed_mib && a->gpu_mib == b->gpu_mib;
    for (int i = 0; same && i < a->n_schemes; i++) same = same_scheme(&a->schemes[i], &b->schemes[i]);
    return same;
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

static void every_name_stands_for_its_machine(void) {
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

static void flexsp_ranks_hold_the_published_tokens(void) {
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
    CHECK(machine_parse(&machine, machine_builtin("flexsp-7b"), strlen(machine_builtin("flexsp-7b")), err,
                        sizeof err) == 0);
    CHECK(machine_capacity(&machine, 64, 2) == 3196 && machine_capacity(&machine, 64, 1) < 1);
    CHECK(machine_capacity(&machine, 3, 3) < 1);  // 16 bytes a parameter on 4 ranks
}

// By hand: 2^30 parameters in 4 layers on 8 ranks; 7/8 of a layer goes to others, 4 bytes of each gradient, 2 of each
// weight.
static void zero_moves_layers_in_every_round(void) {
    const char* text = "name x\nquadratic_ms 1\nlinear_ms 1\nmemory 40 1 8\ntoken_bytes 1\ngroup 4 100\ngroup 8 50\n";
    CHECK(machine_parse(&machine, text, strlen(text), err, sizeof err) == 0);
    double part = 7 / 8. * (1 << 28);
    CHECK_CLOSE(machine_zero_ms(&machine, 2, 8, 4, 4), 4 * 4 * part / 50e6, 1e-9);
    CHECK_CLOSE(machine_zero_ms(&machine, 3, 8, 4, 4), 4 * 4 * part / 50e6 + 2 * 2 * 2 * part / 50e6, 1e-9);
    CHECK(machine_zero_ms(&machine, 1, 8, 4, 4) == 0 && machine_zero_ms(&machine, 3, 1, 4, 4) == 0);
    machine.cost.round = 3;  // measured with what ZeRO moves
    CHECK(machine_zero_ms(&machine, 3, 8, 4, 4) == 0);
    read_builtin("h200-8b");  // says no parameters
    CHECK(machine_zero_ms(&machine, 3, 8, 8, 32) == 0);
}

static const Scheme* scheme_of(const char* name) {
    for (int i = 0; i < machine.n_schemes; i++)
        if (!strcmp(machine.schemes[i].name, name)) return &machine.schemes[i];
    CHECK(!"a scheme of this name");
    return &machine.schemes[0];
}

static void hydraulis_replicas_hold_the_published_tokens(void) {
    // 32B; optimizer state in the layouts (4, 16, 1) and, where known, (64, 16, 1).
    static const struct {
        const char* name;
        int tokens, spread;
    } golden[] = {{"TP16", 43520, 48256}, {"TP8", 21888, 24704}, {"TP8PP2", 25856, 0},     {"TP8PP3", 27264, 0},
                  {"TP8PP4", 27904, 0},   {"TP4", 7808, 9472},   {"TP4PP2", 12416, 13952}, {"TP4PP4", 14592, 0},
                  {"TP2PP2", 3968, 0},    {"TP2PP4", 6272, 0},   {"TP1PP4", 1920, 0}};
    read_builtin("hydraulis-32b");
    CHECK(machine.n_schemes == 15 && scheme_of("TP4PP6")->pp == 6 && scheme_of("TP1PP2")->quadratic == 0);
    for (int i = 0; i < COUNT(golden); i++) {
        const Scheme* scheme = scheme_of(golden[i].name);
        CHECK(machine_scheme_tokens(&machine, scheme, 4, 16, 1) == golden[i].tokens);
        if (golden[i].spread) CHECK(machine_scheme_tokens(&machine, scheme, 64, 16, 1) == golden[i].spread);
    }
    // Worked out by hand in fractions: a pipeline's end holds one embedding, not both.
    CHECK(machine_scheme_tokens(&machine, scheme_of("TP8"), 1, 4, 2) == 768);
    CHECK(machine_scheme_tokens(&machine, scheme_of("TP4PP4"), 1, 4, 2) == 2688);
    CHECK(machine_scheme_tokens(&machine, scheme_of("TP16"), 1, 4, 2) == 8064);
    CHECK(machine_scheme_tokens(&machine, scheme_of("TP1PP4"), 1, 4, 2) == -1152);
    CHECK(machine_scheme_tokens(&machine, scheme_of("TP2"), 4, 16, 1) < 1);
    CHECK(machine_scheme_tokens(&machine, scheme_of("TP1PP2"), 4, 16, 1) < 1);
    // No bytes of activations are known for 3 tensor-parallel ranks, nor for 32.
    CHECK(machine_scheme_tokens(&machine, &(Scheme){.tp = 3, .pp = 1}, 4, 16, 1) < 1);
    CHECK(machine_scheme_tokens(&machine, &(Scheme){.tp = 32, .pp = 1}, 4, 16, 1) < 1);
    read_builtin("hydraulis-7b");
    CHECK(machine.n_schemes == 4 && scheme_of("TP16")->fixed == 65.236);
    for (int i = 0; i < machine.n_schemes; i++)
        CHECK(machine_scheme_tokens(&machine, &machine.schemes[i], 4, 4, 1) > 0);
}

static void heads_of_no_model_divide_by_every_small_cp_size(void) {
    read_builtin("a100-7b");
    for (int d = 1; d <= 16; d++) CHECK(machine_heads(&machine) % d == 0);
    for (int d = 16; d <= 1024; d *= 2) CHECK(machine_heads(&machine) % d == 0);
    for (int d = 1; d <= 1024; d++)
        CHECK_CLOSE((double)CEIL_DIV(machine_heads(&machine), d) * d / machine_heads(&machine), 1, 1e-4);
    read_builtin("flexsp-7b");
    CHECK(machine_heads(&machine) == 64);
}

static void a_setting_has_the_limits_of_its_machine(void) {
    static GroupCost groups[65];
    Setting setting;
    read_builtin("flexsp-7b");
    CHECK(machine_setting(&setting, &machine, 64, 8, 196608, groups, err, sizeof err) == 0);
    CHECK(setting.limits.ranks == 64 && setting.limits.node_size == 8 && setting.limits.capacity == 6449);
    CHECK(setting.limits.kv_heads == 64 && setting.limits.quadratic == 5.128e-6 / 0.1839576 &&
          setting.context == 196608);
    CHECK(setting.groups == groups && !setting.speeds && setting.kind == CP_CHOICE_AUTO &&
          setting.cost.link_scale == 1);
    CHECK(groups[64].cp_size == 64 && groups[64].canonical && !groups[12].canonical && groups[8].room == 8 * 6449);
    CHECK(machine_setting(&setting, &machine, 0, 8, 196608, groups, err, sizeof err) < 0 && strstr(err, "0 ranks"));
    CHECK(machine_setting(&setting, &machine, 8, 0, 196608, groups, err, sizeof err) < 0);
    CHECK(machine_setting(&setting, &machine, 8, 8, 0, groups, err, sizeof err) < 0);
    CHECK(machine_setting(&setting, &machine, 3, 8, 196608, groups, err, sizeof err) < 0 && strstr(err, "more ranks"));
    read_builtin("a100-7b");
    machine.capacity = 0;
    CHECK(machine_setting(&setting, &machine, 8, 8, 4096, groups, err, sizeof err) < 0 && strstr(err, "capacity"));
    read_builtin("hydraulis-32b");
    CHECK(machine_setting(&setting, &machine, 8, 8, 4096, groups, err, sizeof err) < 0 && strstr(err, "pipelines"));
}

// ---- texts

static const char whole[] =
    "name box # a word\n"
    "quadratic_ms 5e-6\nlinear_ms .25\nmicro_batch_ms 1.5\nstep_ms 20\nround_ms 3\nheads 12\ncapacity 4096\n"
    "model 12 768 2\nlink inside 1024 0.01\nlink across 1024 0.05\nlink inside 65536 0.012\nlink across 65536 0.5\n"
    "kv_channels 256\nlink_scale 0.75\npipeline_memory 60 6656 30592 201 0.75 10240 5000 81252 36 0 37 42 50\n"
    "scheme TP8PP2 8 2 1.06789378e-6 0.071058246 61.768\nscheme A 1 1 0 0 0\n";

static void every_key_is_read_into_its_place(void) {
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
          same_scheme(&machine.schemes[0], &(Scheme){"TP8PP2", 8, 2, 1.06789378e-6, 0.071058246, 61.768}));
    CHECK_STRING(machine.schemes[1].name, "A");
    CHECK(read_text("name b\nquadratic_ms 0\nlinear_ms 1\nmodel 12 768 2\n") == 0 && c->kv_channels == 768);
    CHECK(read_text(
              "name b\nquadratic_ms 0\nlinear_ms 1\nmemory 30 7 4.5\ntoken_bytes 2e6\ngroup 2 120\ngroup 8 9.5\n") ==
          0);
    CHECK(machine.memory_gb == 30 && machine.parameters == 7 && machine.token_mb == 4.5 && machine.capacity == 0);
    CHECK(machine.cost.token_bytes == 2e6 && machine.cost.n_groups == 2 && machine.cost.link_scale == 1);
    CHECK(machine.cost.group_cp_size[1] == 8 && machine.cost.group_gbps[1] == 9.5 && machine.cost.group_gbps[0] == 120);
}

static void blanks_comments_and_order_do_not_matter(void) {
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

typedef struct Wrong {
    const char *lines, *words;
} Wrong;

static void a_wrong_line_is_named(void) {
    static const Wrong wrong[] = {
        {"speed 3", "\"speed\" is no key"},
        {"link 3 4", "link inside or link across"},
        {"link", "\"link\" is no key"},
        {"Heads 3", "\"Heads\" is no key"},
        {"\x01\xff 3", "\"??\" is no key"},
        {"heads", "0 values, expected 1"},
        {"heads 1 2", "2 values, expected 1"},
        {"group 2", "1 value, expected 2: cp size, GB/s of a rank"},
        {"link inside 2", "1 value, expected 2"},
        {"pipeline_memory 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", "20 values, expected 13"},
        {"heads 3\nheads 3", "a second time"},
        {"heads 1.5", "expected a whole number from 0 to 1048576"},
        {"heads -1", "value 1 is \"-1\""},
        {"heads 1e99", "whole number"},
        {"micro_batch_ms -0.5", "expected a number from 0"},
        {"micro_batch_ms nan", "\"nan\""},
        {"micro_batch_ms inf", "\"inf\""},
        {"micro_batch_ms 1e999", "\"1e999\""},
        {"micro_batch_ms 0x10", "\"0x10\""},
        {"micro_batch_ms 1,5", "\"1,5\""},
        {"micro_batch_ms 1e", "\"1e\""},
        {"micro_batch_ms --1", "\"--1\""},
        {"micro_batch_ms 1\x02", "\"1?\""},
        {"micro_batch_ms 0000000000000000000000000000000000000000000000000000000000000000000000001", "value 1"},
        {"group 1 5", "from 2 to"},
        {"group 2 0", "from 1e-09"},
        {"group 4 5\ngroup 4 5", "value 1 is 4 after 4, expected more"},
        {"group 4 5\ngroup 2 5", "value 1 is 2 after 4, expected more"},
        {"link inside 10 1\nlink inside 10 1", "value 1 is 10 after 10, expected more"},
        {"link across 10 1\nlink across 20 0.5", "value 2 is 0.5 after 1, expected at least"},
        {"model 0 768 2", "value 1 is \"0\""},
        {"memory 30 7 0", "value 3 is \"0\""},
        {"scheme a_name_too_long_ 1 1 0 0 0", "a word of at most 15"},
        {"scheme caf\xc3\xa9 1 1 0 0 0", "ASCII"},
        {"scheme A 0 1 0 0 0", "value 2 is \"0\""},
        {"pipeline_memory 60 6656 30592 201 1.5 10240 5000 81252 36 36 37 42 50", "from 0 to 1"},
    };
    for (int i = 0; i < COUNT(wrong); i++) {
        char text[512], line[32];
        snprintf(text, sizeof text, "name box\nquadratic_ms 1\nlinear_ms 1\n%s\n", wrong[i].lines);
        snprintf(line, sizeof line, "line %d: ", strchr(wrong[i].lines, '\n') ? 5 : 4);
        CHECK(read_text(text) < 0);
        if (!strstr(err, wrong[i].words) || strncmp(err, line, strlen(line)) != 0) {
            printf("    \"%s\": %s\n", wrong[i].lines, err);
            CHECK(!"a message that says it");
        }
    }
}

static void what_does_not_belong_together_is_refused(void) {
    static const Wrong wrong[] = {
        {"", "without name"},
        {"# nothing\n", "without name"},
        {"quadratic_ms 1\nlinear_ms 1\n", "without name"},
        {"name box\nlinear_ms 1\n", "without quadratic_ms"},
        {"name box\nquadratic_ms 1\n", "without linear_ms"},
        {"name b\nquadratic_ms 1\nlinear_ms 1\ncapacity 5\nmemory 1 1 1\n", "both capacity and memory"},
        {"name b\nquadratic_ms 1\nlinear_ms 1\ntoken_bytes 5\ngroup 2 3\nmodel 1 1 2\nlink inside 1 1\n",
         "both group and link"},
        {"name b\nquadratic_ms 1\nlinear_ms 1\nlink inside 1 1\n", "without the model"},
        {"name b\nquadratic_ms 1\nlinear_ms 1\ntoken_bytes 5\n", "token_bytes or group"},
        {"name b\nquadratic_ms 1\nlinear_ms 1\ngroup 2 3\n", "token_bytes or group"},
    };
    for (int i = 0; i < COUNT(wrong); i++) {
        CHECK(read_text(wrong[i].lines) < 0);
        if (!strstr(err, wrong[i].words)) printf("    \"%s\": %s\n", wrong[i].lines, err);
        CHECK(strstr(err, wrong[i].words));
    }
}

static void lists_are_read_to_their_limits_and_no_further(void) {
    static const struct {
        const char* line;
        int most;
    } lists[] = {{"group %d 5\n", COST_GROUPS},
                 {"link inside %d 1\n", LINK_POINTS},
                 {"link across %d 1\n", LINK_POINTS},
                 {"scheme S%d 1 1 0 0 0\n", MACHINE_SCHEMES}};
    for (int i = 0; i < COUNT(lists); i++)
        for (int over = 0; over < 2; over++) {
            char text[2048] = "name b\nquadratic_ms 1\nlinear_ms 1\n";
            if (i == 0) strcat(text, "token_bytes 1\n");
            if (i == 1 || i == 2) strcat(text, "model 1 1 2\n");
            for (int k = 0; k < lists[i].most + over; k++)
                snprintf(text + strlen(text), sizeof text - strlen(text), lists[i].line, k + 2);
            CHECK(read_text(text) == -over);
            if (over) CHECK(strstr(err, "more than"));
            else CHECK(survives_printing(&machine));
        }
}

static void a_very_long_line_is_refused_at_once(void) {
    size_t n = 20000000;
    char* text = (char*)malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = i % 2 ? ' ' : 'a';
    CHECK(read_bytes(&machine, text, n) < 0 && strstr(err, "\"a\" is no key"));
    memset(text, 'a', n);
    CHECK(read_bytes(&machine, text, n) < 0);
    memset(text, 0, n);
    CHECK(read_bytes(&machine, text, n) < 0 && strstr(err, "???"));
    memset(text, '#', n);
    CHECK(read_bytes(&machine, text, n) < 0 && strstr(err, "line 1: the text ends without name"));
    free(text);
}

// ---- printing

// Doubles of every size that a file may hold, most with all bits of the mantissa.
static double any_number(uint64_t seed, uint64_t i, double least, double greatest) {
    double u = random_uniform(seed, 2 * i), x = least + u * (greatest - least);
    if (hash64(seed ^ hash64(i)) % 3 == 0)
        x = MAX(least, MIN(greatest, exp(60 * random_uniform(seed, 2 * i + 1) - 30)));
    return hash64(seed ^ hash64(~i)) % 5 == 0 ? least : x;
}

static Machine random_machine(uint64_t seed) {
    Machine m = {.cost = {.link_scale = any_number(seed, 1, 0, 2)}};
    Cost* c = &m.cost;
    snprintf(c->name, sizeof c->name, "machine-%d", (int)(seed % 1000));
    double* const reals[] = {&c->quadratic, &c->per_token, &c->micro_batch, &c->step, &c->round};
    for (int i = 0; i < COUNT(reals); i++) *reals[i] = any_number(seed, 10 + (uint64_t)i, 0, 1e9);
    m.heads = (int)(hash64(seed) % 3 * 32);
    if (seed % 3 == 0) m.capacity = 1 + (int)(hash64(seed) % 100000);
    if (seed % 3 == 1) {
        m.memory_gb = any_number(seed, 20, 0, 1e3), m.parameters = any_number(seed, 21, 0, 1e3);
        m.token_mb = any_number(seed, 22, 1e-9, 100);
    }
    if (seed % 2) {
        c->token_bytes = any_number(seed, 23, 1, 1e15);
        c->n_groups = 1 + (int)(seed / 2 % COST_GROUPS);
        for (int i = 0; i < c->n_groups; i++)
            c->group_cp_size[i] = 2 + 3 * i, c->group_gbps[i] = any_number(seed, 30 + (uint64_t)i, 1e-9, 1e4);
    } else {
        c->layers = 12, c->channels = 768, c->kv_channels = seed % 4 ? 768 : 64, c->elem_bytes = 2;
        for (int k = 0; k < N_LINKS; k++) {
            c->link[k].n = (int)(hash64(seed + (uint64_t)k) % (LINK_POINTS + 1));
            for (int i = 0; i < c->link[k].n; i++) {
                c->link[k].bytes[i] = 1e3 * i + random_uniform(seed, 100 + (uint64_t)i);
                c->link[k].ms[i] = i + random_uniform(seed, 200 + (uint64_t)i);
            }
        }
    }
    m.n_schemes = (int)(hash64(~seed) % (MACHINE_SCHEMES + 1));
    for (int i = 0; i < m.n_schemes; i++) {
        uint64_t at = 300 + 3 * (uint64_t)i;
        m.schemes[i] = (Scheme){"",
                                1 << i % 5,
                                1 + i % 7,
                                any_number(seed, at, 0, 1),
                                any_number(seed, at + 1, 0, 1),
                                any_number(seed, at + 2, 0, 1000)};
        snprintf(m.schemes[i].name, SCHEME_NAME, "S%d", i);
    }
    if (m.n_schemes > 0) {
        double* const memory[] = {&m.layers,    &m.hidden,  &m.vocabulary,    &m.state_bytes,  &m.safety_mib,
                                  &m.fixed_mib, &m.gpu_mib, &m.activation[0], &m.activation[3]};
        for (int i = 0; i < COUNT(memory); i++) *memory[i] = any_number(seed, 400 + (uint64_t)i, 1, 1e5);
        m.alpha = random_uniform(seed, 450);
    }
    return m;
}

static void printing_and_reading_gives_the_same_doubles(void) {
    for (uint64_t seed = 0; seed < 1000; seed++) {
        Machine m = random_machine(seed);
        int same = survives_printing(&m);
        CHECK(same);
        if (!same) {
            printf("    seed %d\n", (int)seed);
            return;
        }
    }
}

static void numbers_are_printed_as_short_as_they_can_be(void) {
    char text[256];
    Machine m = {
        .cost = {.name = "b", .quadratic = 5.128e-6, .per_token = 0.1, .micro_batch = 1.0 / 3, .link_scale = 1}};
    machine_print(&m, text, sizeof text);
    CHECK_STRING(text, "name b\nquadratic_ms 5.128e-06\nlinear_ms 0.1\nmicro_batch_ms 0.33333333333333331\n");
}

static void printing_stays_inside_its_buffer(void) {
    CHECK(read_text(whole) == 0);
    char full[1024];
    size_t n = machine_print(&machine, full, sizeof full);
    CHECK(n == strlen(full) && n < sizeof full);
    for (size_t bytes = 0; bytes <= n + 1; bytes++) {
        char* text = (char*)malloc(bytes ? bytes : 1);
        CHECK(machine_print(&machine, text, bytes) == n);
        if (bytes > 0) CHECK(strlen(text) == MIN(n, bytes - 1) && !memcmp(text, full, MIN(n, bytes - 1)));
        free(text);
    }
}

// ---- damage

// Whatever is accepted must make sense and print back.
static int accepts_sense(const char* text, size_t n) {
    if (read_bytes(&machine, text, n)) return 0;
    CHECK(machine.cost.name[0] && machine.cost.quadratic >= 0 && machine.cost.per_token >= 0 && machine.heads >= 0);
    CHECK(survives_printing(&machine));
    return 1;
}

// A prefix that ends between two lines may be a smaller machine, one that ends in a number another number; no other is
// accepted, and none is read beyond its end.
static void every_truncated_prefix_is_refused_or_makes_sense(void) {
    char names[256];
    snprintf(names, sizeof names, "%s", machine_names());
    for (char* name = strtok(names, ", "); name; name = strtok(NULL, ", ")) {
        const char *text = machine_builtin(name), *linear = strstr(text, "linear_ms");
        int accepted = 0;
        for (size_t n = 0; n <= strlen(text); n++) accepted += accepts_sense(text, n);
        for (size_t n = 0; n < (size_t)(linear - text) + strlen("linear_ms "); n++)
            CHECK(read_bytes(&machine, text, n));
        CHECK(accepted > 3 && accepts_sense(text, strlen(text)));
    }
    int accepted = 0;
    for (size_t n = 0; n < sizeof whole; n++) accepted += accepts_sense(whole, n);
    CHECK(accepted > 20 && accepted < (int)sizeof whole / 2);
}

static void corrupted_texts_are_refused_or_make_sense(void) {
    size_t n = sizeof whole - 1;
    int accepted = 0;
    const int tries = 40000;
    for (int k = 0; k < tries; k++) {
        char text[sizeof whole];
        memcpy(text, whole, n);
        for (uint64_t j = 0; j <= (uint64_t)k % 3; j++) {
            uint64_t r = hash64(4 * (uint64_t)k + j);
            static const char signs[] = "0123456789.e-+ \n\t#\r_a\xff";
            text[r % n] = r >> 32 & 1 ? signs[(r >> 33) % sizeof signs] : (char)(r >> 40);
        }
        accepted += accepts_sense(text, n);
    }
    CHECK(accepted > tries / 20 && accepted < tries - tries / 20);  // both outcomes are really tried
}

int main(void) {
    RUN(every_name_stands_for_its_machine);
    RUN(flexsp_ranks_hold_the_published_tokens);
    RUN(zero_moves_layers_in_every_round);
    RUN(hydraulis_replicas_hold_the_published_tokens);
    RUN(heads_of_no_model_divide_by_every_small_cp_size);
    RUN(a_setting_has_the_limits_of_its_machine);
    RUN(every_key_is_read_into_its_place);
    RUN(blanks_comments_and_order_do_not_matter);
    RUN(a_wrong_line_is_named);
    RUN(what_does_not_belong_together_is_refused);
    RUN(lists_are_read_to_their_limits_and_no_further);
    RUN(a_very_long_line_is_refused_at_once);
    RUN(printing_and_reading_gives_the_same_doubles);
    RUN(numbers_are_printed_as_short_as_they_can_be);
    RUN(printing_stays_inside_its_buffer);
    RUN(every_truncated_prefix_is_refused_or_makes_sense);
    RUN(corrupted_texts_are_refused_or_make_sense);
    return test_done();
}
