// test_device.c - the whole program on a device ("./train --device cuda", or emu): it agrees with the CPU, and with
// itself. The model is that of test_golden.c, which compares the same program with PyTorch.
#include "test/program.h"

#define MODEL                                                                                                          \
    "--init test/golden/gpt2/init --data test/golden/docs.jsonl --val test/golden/docs.jsonl --batch-tokens 516 --lr " \
    "0.003 --warmup 3 --sample-every 0 --eval-every 0"
enum { STEPS = 4 };

static int on(const char* device) { return strstr(program, device) != NULL; }

static void train(const char* run, const char* options) {
    CHECK_SH(0, "rm -rf $W/%s && $P " MODEL " --steps %d --save-every 2 --keep 0 --out $W/%s %s", run, STEPS, run,
             options);
}

static void check_losses(const char* a, const char* b, double tolerance) { CHECK_LOSSES(a, b, STEPS, tolerance); }

static void check_same_weights(const char* a, const char* b, int step) {
    CHECK_SH(0, "cmp $W/%s/step-%06d/model.safetensors $W/%s/step-%06d/model.safetensors", a, step, b, step);
}

// Either side is within 1e-5 of exact arithmetic in fp32. In bf16 each is within the band that test_golden.c derives,
// here of a loss of 5: twice that between the two.
static const double FP32 = 2e-5, BF16 = 2 * 5 * 7.0 / 512 / 22.4 / 5 * 2;

CLAIM(losses_agree_with_the_cpu) {
    train("fp32", "--dtype fp32");
    train("cpu-fp32", "--dtype fp32 --device cpu");
    check_losses("fp32", "cpu-fp32", FP32);
    train("bf16", "--dtype bf16");
    train("cpu-bf16", "--dtype bf16 --device cpu");
    check_losses("bf16", "cpu-bf16", BF16);
}

CLAIM(a_second_run_gives_the_same_bits) {
    train("again", "--dtype bf16");
    check_same_weights("again", "bf16", STEPS);
}

CLAIM(a_resumed_run_gives_the_same_bits) {
    CHECK_SH(0, "cp -r $W/bf16 $W/resumed && rm -r $W/resumed/step-%06d && $P --resume --out $W/resumed", STEPS);
    check_same_weights("resumed", "bf16", STEPS);
    check_losses("resumed", "bf16", 0);
}

CLAIM(a_run_moves_from_the_device_to_the_cpu) {
    CHECK_SH(0, "cp -r $W/fp32 $W/moved && rm -r $W/moved/step-%06d && $P --device cpu --resume --out $W/moved", STEPS);
    check_losses("moved", "cpu-fp32", FP32);
}

CLAIM(stochastic_rounding_repeats_itself) {
    train("stochastic", "--dtype bf16,rounding=stochastic");
    train("stochastic-again", "--dtype bf16,rounding=stochastic");
    check_same_weights("stochastic", "stochastic-again", STEPS);
    CHECK_SH(1, "cmp -s $W/stochastic/step-%06d/model.safetensors $W/bf16/step-%06d/model.safetensors", STEPS, STEPS);
    check_losses("stochastic", "cpu-bf16", BF16);
}

// Greedy, so that only a near tie could make two right programs differ.
CLAIM(a_sample_is_that_of_the_cpu) {
    static char first[sizeof output];
    CHECK_SH(0, "$P --out $W/fp32 --sample 'the ' --tokens 60 --temperature 0 --dtype fp32");
    snprintf(first, sizeof first, "%s", output);
    CHECK_SH(0, "$P --out $W/fp32 --sample 'the ' --tokens 60 --temperature 0 --dtype fp32 --device cpu");
    CHECK(strlen(first) > 20);
    CHECK_STRING(output, first);
}

// cuDNN cannot run here, or takes over: in both cases the program says what it does.
CLAIM(cudnn_works_or_is_refused_in_one_line) {
    int status = sh("rm -rf $W/cudnn && $P " MODEL
                    " --steps %d --dtype bf16 --device attention=cudnn "
                    "--save-every 0 --out $W/cudnn",
                    STEPS);
    if (status == 0) {
        check_losses("cudnn", "cpu-bf16", BF16);
        return;
    }
    printf("    refused: %s", errors);
    const char* line = strstr(errors, on("--device cuda") ? "train: cuDNN" : "train: this program");
    CHECK(line && strchr(line, '\n') == line + strlen(line) - 1);  // behind a warning about --val
}

CLAIM(rows_are_longer_than_on_the_cpu) {
#define ROWS "rm -rf $W/rows && $P " MODEL " --verbose --batch-tokens 40000 --steps 0 --save-every 0 --out $W/rows "
    CHECK_SH(0, ROWS);
    CHECK_SAID("in rows of at most 32768\n");
    CHECK_SH(0, ROWS "--device cpu");
    CHECK_SAID("in rows of at most 8192\n");
}

static int untimed_steps(const char* device, const char* balance) {
    CHECK_SH(0,
             "rm -rf $W/timed && " ON_RANKS "$P --device %s " MODEL
             " --save-every 0 --threads 1 --steps 6 --balance %s --plan refresh=16 --out $W/timed",
             2, device, balance);
    CHECK(sh("grep -c '\"compute_ms\": \\[null, null\\], \"wait_ms\": \\[null, null\\]' $W/timed/log.jsonl") <= 1);
    return atoi(output);
}

// Reading events costs the host of a device time: with a refresh every 16 steps every second step is timed, for the log
// alone one of 16. On the CPU all are.
CLAIM(a_device_times_every_kth_step) {
    if (!on("--device emu")) SKIP("two ranks on one device: on the emulated one only");
    CHECK(untimed_steps("cpu", "off") == 0);
    CHECK(untimed_steps("emu", "migrate") == 3);
    CHECK(untimed_steps("emu", "off") == 5);
}

CLAIM(too_large_a_model_is_refused_with_the_table) {
    CHECK(sh("$P --preset gpt2-1558m --layers 900 --vocab 50257 --data test/golden/docs.jsonl --out $W/large") != 0);
    CHECK(strstr(output, "parameters") && strstr(errors, "expected"));
}

// Their share is in the table, more of it where ranks exchange, and nothing of the host's memory.
CLAIM(the_table_has_a_line_for_libraries) {
    CHECK_SH(0, "rm -rf $W/table && $P " MODEL " --steps 1 --verbose --out $W/table");
    const char *line = strstr(output, "\n  libraries "), *total = strstr(output, "\n  total ");
    double mib = 0;
    CHECK(line && total && line < total && strstr(total, "\nmemory of the host\n"));
    CHECK(line && sscanf(line, " libraries %lf MiB", &mib) == 1 && mib >= 256 && mib <= 1536);
}

PROGRAM_TEST {}
