// test_fp8.c - --dtype fp8 as a whole program: the first law, a resume to the bit, what is not FP8, what is refused.
//
// Tolerance. A value has the same scale wherever it lies, so plans and ranks differ by the order of sums in bf16 alone,
// but a sum that falls on another side of a border is off by up to 2^-4 of one factor. Over 6 steps of these models
// losses are within 5e-4 of each other, gradients' norms within 5e-3: LAW and NORMS.
#define RUN_FORKED
#include "test/program.h"

#define SMALL                                                                                                 \
    "--data $W/corpus --layers 3 --width 48 --heads 3 --context 96 --batch-tokens 512 --lr 0.003 --warmup 2 " \
    "--optimizer adamw --eval-every 0 --sample-every 0 --threads 1 --steps 6 "
#define TINY SMALL "--save-every 0 "

static const double LAW = 5e-4, NORMS = 5e-3;

static void run_as(const char* name, const char* options) {
    CHECK_SH(0, "rm -rf $W/%s && $P " TINY "%s --out $W/%s", name, options, name);
    CHECK_SAID("done at step 6 of 6");
}

static void check_like(const char* name, const char* other) {
    CHECK_LOSSES(name, other, 6, LAW);
    CHECK_LOGGED(name, "grad_norm", other, "grad_norm", 6, NORMS);
}

// ---- the law

CLAIM(any_ranks_and_rows_take_the_steps_of_one_rank) {
    static const char* const archs[] = {"", "--arch llama,kv-heads=1,hidden=96 --width 64 --heads 4 "};
    static const char* const others[] = {"--capacity 128",
                                         "--recompute block",
                                         "--recompute activation",
                                         "--ranks 2",
                                         "--ranks 3 --zero 2",
                                         "--ranks 2 --zero 3 --recompute block",
                                         "--ranks 2 --pp 2 --capacity 128",
                                         "--ranks 4 --cp 2",
                                         "--ranks 4 --tp 2 --zero 3 --width 64 --heads 4",
                                         "--ranks 2 --tp 2 --width 64 --heads 4",
                                         "--ranks 4 --tp 2 --pp 2 --recompute block --width 64 --heads 4"};
    for (int a = 0; a < COUNT(archs); a++) {
        run_as("one", filled("--dtype fp8 %s", archs[a]));
        run_as("wide", filled("--dtype fp8 --width 64 --heads 4 %s", archs[a]));
        for (int i = a; i < COUNT(others); i += 1 + 2 * a) {
            run_as("other", filled("--dtype fp8 %s %s", archs[a], others[i]));
            check_like("other", strstr(others[i], "--width") ? "wide" : "one");
        }
    }
}

CLAIM(instruction_sets_take_the_steps_of_the_reference) {
    static const char* const sets[] = {"generic", "avx2", "avx512", "avx512bf16", "amx"};
    run_as("reference", "--dtype fp8 --cpu-isa reference");
    for (int i = 0; i < COUNT(sets); i++) {
        if (sh("$P " TINY "--dtype fp8 --cpu-isa %s --out $W/set", sets[i])) continue;  // not of this processor
        check_like("set", "reference");
        sh("rm -r $W/set");
    }
}

// A backward pass by weights of another layout is no descent.
CLAIM(steps_stay_beside_those_of_bf16_and_are_not_them) {
    double fp8[6], bf16s[6];
    run_as("bf16", "--dtype bf16");
    run_as("fp8", "--dtype fp8");
    CHECK_LOSSES("fp8", "bf16", 6, 5e-3);
    CHECK_LOGGED("fp8", "grad_norm", "bf16", "grad_norm", 6, 0.02);
    CHECK(log_values("fp8", "loss", fp8, 6) == 6 && log_values("bf16", "loss", bf16s, 6) == 6);
    CHECK(fp8[0] == bf16s[0]);  // the first step knows no amax yet
    for (int i = 2; i < 6; i++) CHECK(fp8[i] != bf16s[i]);
}

// ---- scales are of all ranks and all rows, and kept

static double amaxes[2][64];

static int read_amaxes(double* to, const char* run, int step) {
    char name[200];
    static char text[1 << 20];
    Json json;
    int n = 0;
    snprintf(name, sizeof name, "%s/step-%06d/state.json", run, step);
    size_t bytes = read_text(path_of(name), text, sizeof text);
    CHECK(bytes > 0 && json_parse(&json, text, bytes, NULL) == 0);
    const JsonValue* list = json_get(json.values, "amaxes");
    for (; list && n < list->n && n < 64; n++) json_double(json_at(list, n), &to[n]);
    json_free(&json);
    return n;
}

// 3 layers of 4 linears of x, d_y and W, whose amax is not kept. What one rank and one row find, many find, too.
CLAIM(the_greatest_is_that_of_all_ranks_and_rows) {
    static const char* const others[] = {"--capacity 128", "--ranks 3", "--ranks 2 --pp 2", "--ranks 3 --tp 3"};
    CHECK_SH(0, "$P " SMALL "--dtype fp8 --steps 1 --out $W/greatest");
    CHECK(read_amaxes(amaxes[0], "greatest", 1) == 36);
    for (int i = 0; i < COUNT(others); i++) {
        CHECK_SH(0, "rm -rf $W/other && $P " SMALL "--dtype fp8 --steps 1 %s --out $W/other", others[i]);
        CHECK(read_amaxes(amaxes[1], "other", 1) == 36);
        for (int n = 0; n < 36; n++) {
            CHECK(n % 3 == 2 ? amaxes[0][n] == 0 : amaxes[0][n] > 0);
            CHECK_CLOSE(amaxes[1][n], amaxes[0][n], 0.02 * amaxes[0][n]);
        }
    }
}

// Each step finds its own, which the next one takes.
CLAIM(scales_follow_the_step_before) {
    CHECK_SH(0, "$P " SMALL "--dtype fp8 --save-every 1 --keep 0 --out $W/follows");
    CHECK(read_amaxes(amaxes[0], "follows", 1) == 36);
    for (int step = 2, alike = 0; step <= 6; step++, alike = 0) {
        CHECK(read_amaxes(amaxes[1], "follows", step) == 36);
        for (int n = 0; n < 36; n++) alike += n % 3 != 2 && amaxes[0][n] == amaxes[1][n];
        CHECK(alike < 6);  // bf16 has few digits
        memcpy(amaxes[0], amaxes[1], sizeof amaxes[0]);
    }
}

// Answers of a prompt that are rewarded alike have no gradient, or nearly none: the next step remembers those before.
CLAIM(faint_steps_do_not_cut_the_next_ones) {
    static const char* const rewards[][2] = {{"mixed", "-1 0 1"}, {"alike", "0 0 0"}, {"faint", "-0.00001 0 0.00001"}};
    double norms[2][5];
    for (int i = 0; i < COUNT(rewards); i++)
        CHECK_SH(0,
                 "for i in 1 2 3 4 5 6 7 8 9; do all=; for r in %s; do all=\"$all{'text': 'alpha', 'advantage': $r, "
                 "'logprobs': [-5, -5, -5, -5, -5, -5]}, \"; done; echo \"{'prompt': 'Q$i:', 'answers': "
                 "[${all%%, }]}\" | tr \"'\" '\"'; done > $W/%s.jsonl",
                 rewards[i][1], rewards[i][0]);
    for (int i = 0; i < 2; i++) {
        const char* dt = i ? "fp8" : "bf16";
        CHECK_SH(0, "$P " SMALL "--data $W/mixed.jsonl --loss grpo --dtype %s --steps 2 --out $W/grpo-%s", dt, dt);
        for (int step = 3; step <= 5; step++)
            CHECK_SH(0, "$P --resume --new-data --data $W/%s.jsonl --steps %d --keep 0 --out $W/grpo-%s",
                     rewards[step == 3   ? 1
                             : step == 4 ? 2
                                         : 0][0],
                     step == 5 ? 7 : step, dt);
        CHECK(log_values(filled("grpo-%s", dt), "grad_norm", norms[i], 5) == 5);
    }
    CHECK(norms[1][2] == 0 && norms[1][3] > 0 && norms[1][3] < 1e-3 * norms[1][1]);
    CHECK_CLOSE(norms[1][4], norms[0][4], 0.05 * norms[0][4]);
}

CLAIM(a_resumed_run_takes_the_same_steps_to_the_bit) {
    static const char* const ways[] = {"", "--ranks 2", "--ranks 2 --tp 2 --width 64 --heads 4 --zero 2",
                                       "--ranks 2 --pp 2"};
    for (int i = 0; i < COUNT(ways); i++) {
        CHECK_SH(0, "rm -rf $W/whole $W/half && $P " SMALL "--dtype fp8 --save-every 3 --keep 0 %s --out $W/whole",
                 ways[i]);
        const char* hash = loss_hash();
        CHECK_SH(0, "cp -r $W/whole $W/half && rm -r $W/half/step-000006 && $P --resume --out $W/half %s",
                 strstr(ways[i], "--ranks") ? "--ranks 2" : "");
        CHECK_STRING(loss_hash(), hash);
        CHECK_SH(0, "cmp $W/whole/step-000006/model.safetensors $W/half/step-000006/model.safetensors");
    }
    CHECK_SH(0, "rm -r $W/half/step-000006 && $P --resume --out $W/half");  // on one rank
    CHECK_LOSSES("half", "whole", 6, LAW);
    // Without FP8 nothing of it is kept; with it again the first step is bf16's.
    CHECK_SH(0,
             "rm -r $W/half/step-000006 && $P --resume --out $W/half --dtype bf16 && "
             "grep -q '\"fp8\": 0' $W/half/step-000006/state.json && $P --resume --out $W/half --dtype fp8 --steps 8");
    CHECK_SAID("done at step 8 of 8");
}

// ---- what is not FP8

CLAIM(evaluations_are_those_of_bf16) {
    char said[64];
    CHECK_SH(0, "rm -rf $W/run && $P " SMALL "--dtype fp8 --out $W/run");
    CHECK_SH(0, "$P --eval --data $W/corpus --out $W/run");
    snprintf(said, sizeof said, "%.*s", (int)strcspn(output, ","), output);
    CHECK(!strncmp(said, "loss ", 5));
    CHECK_SH(0, "$P --eval --data $W/corpus --out $W/run --dtype bf16");
    CHECK_SAID(said);
    CHECK_SH(0, "$P --sample ab --tokens 4 --out $W/run && $P --dump-grads $W/grads --resume --out $W/run --steps 8");
}

CLAIM(its_memory_is_in_the_table) {
    CHECK_SH(0, "$P " TINY "--dtype fp8 --steps 1 --verbose --out $W/table");
    CHECK_SAID("fp8 weights & fp8 operand & fp8 scales & cpu & , fp8,");
    CHECK_SH(0, "$P " TINY "--dtype bf16 --steps 1 --verbose --out $W/table2");
    CHECK_SAID("!fp8");
}

CLAIM(virtual_ranks_take_the_times_of_bf16) {
    static char times[2][4000];
    for (int i = 0; i < 2; i++) {
        CHECK_SH(0,
                 "$P --device virtual --ranks 8 --tp 2 --machine h200-8b --preset llama-3.1-8b --vocab 128256 "
                 "--context 8192 --batch-tokens 65536 --steps 2 --dtype %s",
                 i ? "fp8" : "bf16");
        snprintf(times[i], sizeof times[i], "%s", strstr(output, "step 2/2") ? strstr(output, "step 2/2") : "");
        times[i][strcspn(times[i], "\n")] = 0;
    }
    CHECK(*times[0] && !strcmp(times[0], times[1]));
}

// ---- refusals

CLAIM(what_does_not_go_with_it_is_refused) {
    static const Refusal rows[] = {
        {"--width 40 --heads 5", "--dtype fp8 & multiples of 16 & of 120, 40 & --dtype bf16", 0},
        {"--layers 171", "--dtype fp8 & at most 170 layers & found 171 & --dtype bf16", 0},
        {"--ranks 4 --strategies '2xtp2;4xtp1'", "--strategies with --dtype fp8 & --dtype bf16", 0},
        {"--ranks 2 --tp 2 --balance resize", "--balance with --dtype fp8 & --dtype bf16", 0},
        {"--ranks 2 --tp 2 --balance migrate", "--balance with --dtype fp8 & --dtype bf16", 0},
        {"--ranks 2 --tp 2 --balance semi", "--balance with --dtype fp8 & --dtype bf16", 0},
    };
    CHECK_REFUSALS(TINY "--dtype fp8 --out $W/refused", rows);
    CHECK_SH(0, "$P " SMALL "--dtype bf16 --steps 1 --out $W/base");
    CHECK_REFUSED("--lora with --dtype fp8 & --dtype bf16",
                  "$P --init $W/base/step-000001 --data $W/corpus --lora rank=4 --dtype fp8 --out $W/refused");
    run_as("documents", "--ranks 2 --balance documents --dtype fp8");
}

CLAIM(tensor_parallel_shares_are_of_whole_units_of_16) {
    CHECK_REFUSED("multiples of 16 on every rank & of 72, 48",
                  "$P " TINY "--dtype fp8 --heads 6 --ranks 2 --tp 2 --out $W/refused");
}

// A GPU or a library without it (of the emulator: variables of the environment): one line.
CLAIM(a_device_without_it_is_refused) {
    if (!strstr(program, "--device emu")) SKIP("the device is no emulated GPU");
    CHECK_REFUSED("sm_89 & sm_80 & --dtype bf16", "EMU_CAPABILITY=80 $P " TINY "--dtype fp8 --out $W/old");
    CHECK_SH(1, "EMU_LACKS_FP8=1 $P " TINY "--dtype fp8 --out $W/lacks");
    CHECK_SAID("no algorithm & of fp8 & --dtype bf16");
}

PROGRAM_TEST { write_ragged_corpus(60, 7, 11); }
