// test_lora.c - adapters beside frozen weights: the same steps on any ranks and after a resume, what is in their files,
// what the base and they are together, and what is refused. test_golden.c compares their steps with PyTorch's.
//
//   build/release/test/test_lora build/release/train
#include "data/model_files.h"
#include "test/program.h"
#include "test/tensors.h"

#define SMALL                                                                                               \
    "--data $W/corpus --context 96 --batch-tokens 768 --lr 0.01 --steps 5 --eval-every 0 --sample-every 0 " \
    "--save-every "                                                                                         \
    "0 --dtype fp32 --threads 1 "
#define LORA "--lora rank=3,alpha=9"

static const char* const bases[] = {"gpt", "llama", "qwen"};  // made before the claims

static void adapt(const char* name, int base, const char* options) {
    CHECK_SH(0, "$P --init $W/%s/step-000002 " LORA " " SMALL "%s --out $W/%s", bases[base], options, name);
    CHECK_SAID("done at step 5 of 5");
}

// ---- any ranks, any layout

CLAIM(any_ranks_take_the_same_steps) {
    static const char* const layouts[] = {"--ranks 2",
                                          "--ranks 2 --tp 2",
                                          "--ranks 3 --zero 3",
                                          "--ranks 4 --tp 4",
                                          "--ranks 2 --pp 2",
                                          "--ranks 4 --cp 2",
                                          "--ranks 3 --zero 2",
                                          "--ranks 2 --cp 2,kind=ring",
                                          "--ranks 4 --tp 2 --pp 2 --zero 3 --recompute block",
                                          "--ranks 4 --layout 'tp 4; stage layers 3; layers 1 tp 2; layers 2 tp 4'",
                                          "--recompute activation --ranks 2 --balance documents",
                                          "--capacity 100"};
    for (int b = 0; b < COUNT(bases); b++) {
        adapt(filled("one%d", b), b, "");
        for (int i = 0; i < COUNT(layouts); i++) {
            if (b == 2 && i % 2 == 0) continue;
            adapt(filled("many%d-%d", b, i), b, layouts[i]);
            CHECK_LOSSES(filled("many%d-%d", b, i), filled("one%d", b), 5, 1e-6);
        }
    }
}

// A prompt with several answers is a tree, and so is a pair.
CLAIM(trees_and_preferences_take_the_same_steps) {
    static const char* const losses[] = {"nll", "dpo"};
    static const char* const rows[] = {"\\\"answers\\\": [\\\" it is ragged\\\", \\\" here\\\"]",
                                       "\\\"chosen\\\": \\\" it is ragged\\\", \\\"rejected\\\": \\\" here\\\""};
    for (int i = 0; i < 2; i++) {
        CHECK_SH(
            0, "for i in 1 2 3 4 5 6 7 8; do echo \"{\\\"prompt\\\": \\\"where $i ends\\\", %s}\"; done > $W/%s.jsonl",
            rows[i], losses[i]);
        const char* options = filled("--data $W/%s.jsonl --val $W/%s.jsonl --batch-tokens 400 --loss %s", losses[i],
                                     losses[i], losses[i]);
        adapt(filled("tree%d", i), 1, options);
        adapt(filled("trees%d", i), 1, filled("%s --ranks 2 --tp 2", options));
        CHECK_LOSSES(filled("trees%d", i), filled("tree%d", i), 5, 1e-6);
    }
}

// The reference of preferences is the base: a new adapter is nothing yet, so that no pair prefers anything.
CLAIM(preferences_begin_at_the_base) {
    double loss[5];
    adapt("begins", 1, "--data $W/dpo.jsonl --val $W/dpo.jsonl --batch-tokens 400 --loss dpo");
    CHECK(log_values("begins", "loss", loss, 5) == 5);
    CHECK_CLOSE(loss[0], log(2), 1e-6);
    CHECK(loss[4] < loss[0]);
}

// ---- files

static int tensors_of(const char* path) {
    SafeTensors found;
    char err[ERR_BYTES], *bytes;
    if (tensors_load(&found, &bytes, path, err)) return -1;
    int n = found.n;
    safetensors_close(&found), free(bytes);
    return n;
}

CLAIM(a_resumed_run_takes_the_same_steps_and_its_checkpoints_hold_adapters_alone) {
    CHECK_SH(0, "md5sum $W/llama/step-000002/* > $W/before");
    adapt("whole", 1, "--save-every 3 --keep 0 --ranks 2");
    char hash[17];
    snprintf(hash, sizeof hash, "%s", loss_hash_or_none());
    CHECK_SH(0, "cp -r $W/whole $W/half && rm -r $W/half/step-000005 && $P --resume --out $W/half --ranks 2");
    CHECK(!strcmp(hash, loss_hash_or_none()));
    CHECK_SH(0, "cmp $W/whole/step-000005/adapter_model.safetensors $W/half/step-000005/adapter_model.safetensors");
    CHECK_SH(0, "! ls $W/whole/step-000005/config.json $W/whole/step-000005/model.safetensors");
    CHECK(tensors_of(path_of("whole/step-000005/adapter_model.safetensors")) == 3 * 7 * 2);
    CHECK_SH(0, "md5sum $W/llama/step-000002/* | cmp - $W/before");
}

// An adapter of other ranks, tp and ZeRO goes on, too, and without its optimizer from --init.
CLAIM(adapters_go_on_in_other_layouts) {
    CHECK_SH(0, "$P --init $W/llama/step-000002 " LORA " " SMALL
                "--steps 3 --save-every 3 --ranks 2 --tp 2 --zero 3 --out $W/there");
    CHECK_SH(0,
             "cp -r $W/there $W/here && $P --resume --out $W/there --tp 1 --ranks 1 --steps 5 && "
             "$P --resume --out $W/here --tp 1 --pp 2 --ranks 2 --zero 1 --steps 5");
    CHECK_LOSSES("here", "there", 5, 1e-6);
    CHECK_SH(0, "$P --init $W/there/step-000003 " SMALL "--out $W/again");
    CHECK_SAID("lora    rank 3, alpha 9, on all");
}

CLAIM(sublayers_have_adapters_as_asked) {
    static const char* const on[] = {"attention", "mlp"};
    static const int tensors[] = {3 * 4 * 2, 3 * 3 * 2};
    for (int i = 0; i < 2; i++) {
        CHECK_SH(0, "$P --init $W/llama/step-000002 --lora rank=2,on=%s " SMALL "--save-every 5 --out $W/on-%s", on[i],
                 on[i]);
        CHECK(tensors_of(path_of(filled("on-%s/step-000005/adapter_model.safetensors", on[i]))) == tensors[i]);
        CHECK_SH(0, "$P --init $W/on-%s/step-000005 --eval --data $W/corpus", on[i]);
    }
}

// ---- one model

static double loss_of(const char* options) {
    CHECK_SH(0, "$P %s --eval --data $W/corpus --dtype fp32 --context 96", options);
    const char* at = strstr(output, "loss ");
    return at ? strtod(at + 5, NULL) : NAN;
}

CLAIM(a_merged_model_is_the_base_with_its_adapter) {
    for (int b = 0; b < COUNT(bases); b++) {
        adapt(filled("parts%d", b), b, "--save-every 5");
        CHECK_SH(0, "$P --merge $W/merged%d --out $W/parts%d --ranks 2 %s --dtype fp32", b, b,
                 b ? "--tp 2" : "--zero 3");
        double base = loss_of(filled("--init $W/%s/step-000002", bases[b])),
               parts = loss_of(filled("--out $W/parts%d", b)), merged = loss_of(filled("--init $W/merged%d", b));
        CHECK_CLOSE(merged, parts, 2e-6);
        CHECK(parts < base - 0.01);
        CHECK_SH(0,
                 "$P --init $W/merged%d --sample 'the ' --temperature 0 --tokens 20 --dtype fp32 > $W/text && "
                 "$P --out $W/parts%d --sample 'the ' --temperature 0 --tokens 20 --dtype fp32 | cmp - $W/text",
                 b, b);
    }
    CHECK_REFUSED("--merge & new directory", "$P --merge $W/merged0 --out $W/parts0");
    CHECK_SH(0, "$P --merge $W/as-base --out $W/parts0 && grep float32 $W/as-base/config.json");
    CHECK_SH(0,
             "cp -r test/golden/llama/adapter $W/nan && cd $W/nan && printf '\\377\\377\\377\\377' | dd "
             "of=adapter_model.safetensors "
             "bs=1 conv=notrunc seek=$(($(stat -c %%s adapter_model.safetensors) - 4))");
    CHECK_REFUSED("--merge & finite", "$P --merge $W/empty --init $W/nan --context 48");
    CHECK_SH(0, "test -z \"$(ls $W/empty)\"");
    CHECK_REFUSED("--merge & whole model", "$P --merge $W/x --init $W/gpt/step-000002");
}

// ---- what is refused

CLAIM(what_does_not_go_together_is_said_in_one_line) {
    static const Refusal alone[] = {{"--lora rank=4", "--lora & expected --init DIR", 0}};
    static const Refusal rows[] = {{"--lora rank=0.5", "--lora rank", 0},
                                   {"--lora 16", "--lora & KEY=VALUE & rank", 0},
                                   {"--lora rank=4,dropout=0.1", "--lora dropout & none", 0},
                                   {"--lora alpha=16", "--lora & expected rank=R", 0},
                                   {"--lora on=mlp", "--lora & expected rank=R", 0},
                                   {"--lora rank=4,base=there", "base=there & expected an adapter", 0},
                                   {"--lora rank=4 --layout hydraulis", "--layout hydraulis & --lora", 0},
                                   {"--lora rank=4 --merge $W/merged", "--merge & whole model", 0},
                                   {"--lora rank=4 --optimizer muon", "--optimizer muon & AdamW", 0},
                                   {"--lora rank=4 --ranks 2 --strategies '2xtp1; 1xtp2'", "--strategies & --lora", 0},
                                   {"--lora rank=4 --ranks 2 --tp 2 --balance migrate", "--balance & --lora", 0}};
    CHECK_REFUSALS(SMALL "--out $W/refused", alone);
    CHECK_REFUSALS("--init $W/gpt/step-000002 " SMALL "--out $W/refused", rows);
    adapt("kept", 1, "--save-every 5");
    CHECK_REFUSED("expected --lora rank=3,alpha=9,on=all",
                  "$P --init $W/kept/step-000005 --lora rank=4 " SMALL "--out $W/refused");
    static const char* const others[] = {"rank=0", "alpha=8", "on=mlp", "rank=3,alpha=9,on=attention"};
    for (int i = 0; i < COUNT(others); i++) {
        CHECK_REFUSED("expected --lora rank=3,alpha=9,on=all",
                      "$P --init $W/kept/step-000005 --lora %s " SMALL "--out $W/refused", others[i]);
        CHECK_REFUSED("expected --lora rank=3,alpha=9,on=all", "$P --resume --lora %s --out $W/kept", others[i]);
    }
    CHECK_REFUSED("--resume & has adapters & --init", "$P --resume --lora rank=4 --out $W/llama");
}

// The base may have moved, but not changed.
CLAIM(a_base_is_looked_for_and_must_be_the_same) {
    CHECK_SH(0, "cp -r $W/llama/step-000002 $W/base && $P --init $W/base " LORA " " SMALL
                "--save-every 5 --out $W/moves && "
                "mv $W/base $W/moved");
    CHECK_REFUSED("base model & found none & --lora base=DIR", "$P --resume --out $W/moves --steps 6");
    CHECK_REFUSED("other weights & --lora base=DIR",
                  "$P --resume --out $W/moves --steps 6 --lora base=$W/other/step-000002");
    CHECK_REFUSED("other weights",
                  "$P --init $W/moves/step-000005 " SMALL "--out $W/refused --lora base=$W/other/step-000002");
    CHECK_SH(0,
             "cp -r $W/moved $W/touched && printf x | dd of=$W/touched/model.safetensors bs=1 seek=$(($(stat -c %%s "
             "$W/moved/model.safetensors) - 2)) conv=notrunc");
    CHECK_REFUSED("other weights", "$P --resume --out $W/moves --steps 6 --lora base=$W/touched");
    CHECK_SH(0, "$P --resume --out $W/moves --steps 6 --lora base=$W/moved");
    CHECK_SAID("done at step 6 of 6");
}

// PEFT's directories hold two files; what this program cannot compute is refused by name.
CLAIM(adapters_from_elsewhere_are_read_or_refused_by_name) {
    static const char* const changes[][2] = {
        {"s/\"bias\": \"none\"/\"bias\": \"all\"/", "bias none & all"},
        {"s/\"r\": 3/\"r\": 3, \"init_lora_weights\": \"pissa\"/", "init_lora_weights & pissa"},
        {"s/\"r\": 3/\"r\": 3, \"alora_invocation_tokens\": [1]/", "alora_invocation_tokens & empty"},
        {"s/\"target_modules\"/\"target_modules\": \".*proj\", \"was\"/", "list of target_modules & proj"},
        {"s/\"r\": 3/\"r\": 0/", "rank r"},
        {"s/\"r\": 3/\"r\": 3, \"use_dora\": true/", "use_dora & true"},
        {"s/\"r\": 3/\"r\": 3, \"modules_to_save\": [\"lm_head\"]/", "modules_to_save & empty"},
        {"s/\"q_proj\",*//; s/\"self_attn.q_proj\",*//", "target_modules & attention"},
        {"s/\"mlp.up_proj\"/\"up\"/", "target_modules & up"},
        {"s/\"r\": 3/\"r\": 4/", "adapter_model.safetensors & lora_A & shape"},
        {"s/{/[/", "adapter_config.json"}};
    CHECK_SH(0, "$P --init test/golden/llama/adapter --eval --data $W/corpus --context 48");
    for (int i = 0; i < COUNT(changes); i++) {
        CHECK_SH(0,
                 "rm -rf $W/peft && cp -r test/golden/llama/adapter $W/peft && sed -i '%s' $W/peft/adapter_config.json",
                 changes[i][0]);
        CHECK_REFUSED(changes[i][1], "$P --init $W/peft --eval --data $W/corpus --context 48");
    }
}

// PEFT writes all-linear as paths where a model has a head of its own.
CLAIM(targets_may_be_named_by_their_whole_paths) {
    CHECK_SH(
        0,
        "rm -rf $W/peft && cp -r test/golden/llama/adapter $W/peft && paths=$(for l in 0 1; do for m in self_attn.q "
        "self_attn.k self_attn.v self_attn.o mlp.gate mlp.up mlp.down; do printf '\"model.layers.%%d.%%s_proj\", ' $l "
        "$m; done; done) && sed -i \"s/\\\"target_modules\\\"/\\\"target_modules\\\": [${paths%%, }], \\\"was\\\"/\" "
        "$W/peft/adapter_config.json && $P --init $W/peft --eval --data $W/corpus --context 48");
    CHECK_SH(0, "sed -i 's/, \"model.layers.1.mlp.down_proj\"//' $W/peft/adapter_config.json");
    CHECK_REFUSED("found 5 of 6 of the MLP", "$P --init $W/peft --eval --data $W/corpus --context 48");
}

// ---- memory, as predicted

static double total_mib(const char* options) {
    CHECK_SH(0,
             "$P --device virtual --machine h200-8b --lora rank=16 --steps 1 --data $W/corpus --verbose --eval-every 0 "
             "--out $W/predicted %s && rm -r $W/predicted",
             options);
    const char* at = strstr(output, "\n  total");
    return at ? strtod(at + strlen("\n  total"), NULL) : NAN;
}

// Weights of 8B take 16 GB in bf16; training all of them would take 16 bytes each, and not fit.
CLAIM(an_8b_model_fits_into_80_gb_and_one_of_06b_into_8_gb_as_predicted) {
#define LARGE "--preset llama-3.1-8b --vocab 128256 --context 8192 --batch-tokens 8192 --memory 80000M "
    double large = total_mib(LARGE), less = total_mib(LARGE "--recompute block"),
           small = total_mib("--preset qwen3-0.6b --vocab 151936 --context 2048 --batch-tokens 2048 --memory 8000M");
    printf("    8B, 8192 tokens: %.1f GiB, with --recompute block %.1f; 0.6B, 2048 tokens: %.1f GiB\n", large / 1024,
           less / 1024, small / 1024);
    CHECK(large > 16e9 / (1 << 20) && large < 60 * 1024 && less < large / 2 && small < 8e9 / (1 << 20));
    CHECK_REFUSED("expected 17 & of memory & found 78",
                  "$P --device virtual --machine h200-8b --steps 1 --data $W/corpus " LARGE);
}

static double last_of(const char* name, const char* member) {
    double values[8];
    int n = log_values(name, member, values, 8);
    return n > 0 ? values[n - 1] : NAN;
}

// Two thirds of the operations remain, and no gradient of a frozen weight travels. Predictions leave out the thin
// matmuls of adapters, and that tensor-parallel ranks each make all of x A^T.
CLAIM(steps_take_what_is_predicted) {
    static const char* const ways[] = {"--ranks 8 --zero 1", "--ranks 8 --zero 3", "--ranks 4 --pp 2",
                                       "--ranks 8 --tp 4"};
    for (int i = 0; i < COUNT(ways); i++) {
        double seconds[2];
        for (int lora = 0; lora < 2; lora++) {
            CHECK_SH(
                0,
                "rm -rf $W/timed && $P --device virtual --machine h200-8b --memory 200G --preset llama-3.1-8b --vocab "
                "128256 --context 8192 --batch-tokens 65536 --steps 3 --data $W/corpus --eval-every 0 --out $W/timed "
                "%s %s",
                ways[i], lora ? "--lora rank=16" : "");
            seconds[lora] = last_of("timed", "seconds");
            CHECK_CLOSE(1000 * seconds[lora], last_of("timed", "predicted_ms"), (lora ? 60 : 20) * seconds[lora]);
        }
        printf("    %-20s adapters take %.3f of a step\n", ways[i], seconds[1] / seconds[0]);
        CHECK(seconds[1] < 0.82 * seconds[0] && seconds[1] > 0.6 * seconds[0]);
    }
}

PROGRAM_TEST {
    static const char* const archs[] = {"--heads 4", "--arch llama,kv-heads=2 --heads 4",
                                        "--arch qwen3,kv-heads=2,tie=yes --heads 4"};
    CHECK_SH(0, "mkdir $W/corpus && cp plan/base/*.h $W/corpus");
    for (int b = 0; b < COUNT(bases); b++)
        CHECK_SH(0, "$P " SMALL "--layers 3 --width 48 %s --optimizer adamw --steps 2 --save-every 2 --out $W/%s",
                 archs[b], bases[b]);
    CHECK_SH(0,
             "$P " SMALL "--layers 3 --width 48 %s --optimizer adamw --steps 2 --save-every 2 --seed 2 --out $W/other",
             archs[1]);
}
