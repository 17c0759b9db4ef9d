// test_cli.c - what a person gets to see: one clear line for each mistake, help, and a first run that works.
#include "plan/base/base.h"
#include "plan/base/text.h"
#include "test/program.h"

#define TINY                                                                                                     \
    "--data $W/corpus --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 2 --eval-every 0 " \
    "--sample-every 0 "                                                                                          \
    "--out $W/run"

// The command fails with status 1 and exactly one line on stderr, in which each of the words occurs.
static void refused(const char* options, const char* word1, const char* word2) {
    int status = sh("$P %s", options);
    const char* newline = strchr(errors, '\n');
    int one_line = newline && !newline[1];
    CHECK(status == 1);
    CHECK(one_line);
    CHECK(strstr(errors, word1) && strstr(errors, word2));
    if (status != 1 || !one_line || !strstr(errors, word1) || !strstr(errors, word2))
        printf("    %s\n    status %d: %s", options, status, errors);
}

CLAIM(mistaken_options_get_one_line) {
    refused("--bach-tokens 5", "--bach-tokens", "--batch-tokens");
    refused("--steps -4", "--steps", "0 to");
    refused("--lr fast", "--lr", "fast");
    refused("--capacity 100 --context 256", "--capacity 100", "--capacity 256");
    refused("--arch kv-heads=2", "--arch kv-heads=2,head-size=32: a GPT-2", "--arch llama");
    refused("--data $W/corpus --arch llama,theta=0.5 --out $W/o", "could be read again", "rope_theta");
    refused("--device cuda", "cuda", "--device cpu");
    refused("--data $W/corpus --tp 2", "--tp", "mpirun -n 2");
    refused("--data $W/corpus --straggle rank=1", "--straggle", "rank=^1");
    refused("--plan flexible", "--plan", "flex|adaptive|static|flexsp|hydraulis|zeppelin|megatron|fixed");
    refused("--sample", "--sample", "value");
    refused("train.txt", "train.txt", "--data");
}

CLAIM(unusable_data_gets_one_line) {
    sh("mkdir $W/empty; : > $W/empty.txt; head -c 5000 /dev/urandom > $W/junk.txt; printf '\\0\\0\\0' >> $W/junk.txt; "
       "printf '{\"text\": \"a b\"}\\n{\"text\": 5}\\n' > $W/bad.jsonl; printf '{\"text\": \"a' > $W/torn.jsonl; "
       "head -c 100 /dev/zero > $W/short.bin; head -c 4000 /dev/zero > $W/zero.bin");
    refused("--out $W/o --data $W/nothing", "nothing", "");
    refused("--out $W/o --data $W/empty", "empty", "");
    refused("--out $W/o --data $W/empty.txt", "empty.txt", "");
    refused("--out $W/o --data $W/junk.txt", "junk.txt", "");
    refused("--out $W/o --data $W/bad.jsonl", "bad.jsonl:2", "text");
    refused("--out $W/o --data $W/torn.jsonl", "torn.jsonl:1", "");
    refused("--out $W/o --data $W/short.bin", "short.bin", "");
    refused("--out $W/o --data $W/zero.bin", "zero.bin", "");
    refused("--out $W/o --data '$W/*.nothing'", "nothing", "");
    refused("--out $W/o --data $W/corpus --val $W/empty", "--val", "empty");
    refused("--out $W/o --data $W/corpus --tokenizer $W/junk.txt", "junk.txt", "");
    refused("--out $W/o --data $W/corpus --tokenizer $W/nothing", "nothing", "");
}

CLAIM(unusable_checkpoints_get_one_line) {
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    sh("cp -r $W/run/step-000002 $W/c && rm $W/c/DONE $W/c/state.json && cp -r $W/c $W/torn && truncate -s 3000 "
       "$W/torn/model.safetensors && "
       "cp -r $W/c $W/json && echo '{\"n_layer\": ' > $W/json/config.json && cp -r $W/c $W/relu && "
       "sed -i s/gelu_new/relu/ $W/relu/config.json && cp -r $W/run/step-000002 $W/unfinished && rm "
       "$W/unfinished/DONE");
    refused("--resume --out $W/nowhere", "--resume", "nowhere");
    refused("--init $W/nowhere", "nowhere", "");
    refused("--out $W/o --data $W/corpus --batch-tokens 256 --init $W/torn", "model.safetensors", "");
    refused("--out $W/o --data $W/corpus --batch-tokens 256 --init $W/json", "config.json", "");
    refused("--out $W/o --data $W/corpus --batch-tokens 256 --init $W/relu", "gelu_new", "relu");
    refused("--init $W/unfinished --data $W/corpus", "DONE", "");
    refused("--sample x --out $W/empty-run", "--sample", "empty-run");
    refused("--init $W/c --heads 3 --data $W/corpus", "--heads 3", "found 2");
}

CLAIM(a_full_disk_leaves_the_older_checkpoint_whole) {
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    // No file may grow past 64 KiB: writing fails in the middle, as on a full disk.
    CHECK_SH(1, "ulimit -f 128; exec $P --resume --steps 4 --out $W/run");
    CHECK(strstr(errors, "File too large; raise the limit of a file's size (ulimit -f)"));
    CHECK_SH(0, "ls $W/run/step-000002/DONE && ! ls -d $W/run/step-000004* $W/run/*.tmp");
    CHECK_SH(0, "$P --resume --steps 4 --out $W/run");
}

CLAIM(a_run_prints_what_it_understood_before_it_starts) {
    CHECK_SH(0, "rm -rf $W/run && $P " TINY " --eval-every 1 --verbose");
    const char* parts[] = {"options",    "model",       "data",    "device",   "memory",
                           "parameters", "activations", "total",   "step 1/2", "validation loss",
                           "unigram",    "loss hash",   "--sample"};
    const char* at = output;
    for (int i = 0; i < COUNT(parts) && at; i++) {
        at = strstr(at, parts[i]);
        if (!at) printf("    missing, or out of order: %s\n", parts[i]);
        CHECK(at != NULL);
    }
    CHECK(strchr(output, '\033') == NULL && strchr(output, '\r') == NULL);  // no terminal: no colour, no rewriting
}

CLAIM(the_first_screen_has_five_lines_and_then_the_loss) {
    static const char* const begins[] = {"model   ", "data    ", "device  ",
                                         "memory  ", "run     ", "step 1/2 | loss "};
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    const char* line = output;
    for (int i = 0; i < COUNT(begins) && line; i++) {
        CHECK(!strncmp(line, begins[i], strlen(begins[i])));
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
}

// Nothing in the output but lines of text: what the filter of foreign text leaves alone.
static void check_shown(const char* what) {
    TextFilter t = {{0}, 0, 0};
    size_t n = strlen(output), at = 0, wrong = 0;
    for (size_t i = 0; i < n; i++) {
        char part[TEXT_MOST];
        int more = text_filter(&t, (unsigned char)output[i], 1, part);
        if (more > 0 && memcmp(output + at, part, (size_t)more) != 0) wrong++;
        at += (size_t)more;
    }
    CHECK(wrong == 0 && at == n && !strchr(output, '\033') && !strstr(output, "\xc2\x9b"));
    if (wrong || at != n) printf("    of %s: %zu bytes are no text\n", what, MAX(wrong, n - at));
}

CLAIM(names_that_others_chose_cannot_command_a_terminal) {
    setenv("EVIL",
           "e\033]0;x\007\xc2\x9b"
           "31m\xe2\x80\xae\nz\xff",
           1);
    static const char* const mistakes[] = {"--data \"$W/$EVIL\"",
                                           "\"--$EVIL\"",
                                           "--schedule \"$EVIL\"",
                                           "--init \"$W/$EVIL\"",
                                           "--sample x --out \"$W/$EVIL\"",
                                           "--data $W/corpus --machine \"$W/$EVIL\" --explain",
                                           "--data $W/corpus --tokenizer \"$EVIL\""};
    for (int i = 0; i < COUNT(mistakes); i++) {
        refused(mistakes[i], "e?]0;x??31m??z?", "");
        check_shown(mistakes[i]);
    }
    CHECK_SH(0, "cp -r $W/corpus \"$W/texts$EVIL\" && $P " TINY " --data \"$W/texts$EVIL\" --out \"$W/out$EVIL\"");
    CHECK(strstr(output, "oute?]0;x??31m??z?"));
    check_shown("a run");
    CHECK_SH(0,
             "cp -r $W/out*/step-000002 $W/odd && rm $W/odd/DONE $W/odd/state.json && "
             "sed -i \"s/gelu_new/$(printf '\\302\\233')31m/\" $W/odd/config.json");
    refused("--init $W/odd --data $W/corpus", "gelu_new", "?31m");
    check_shown("a configuration");
}

CLAIM(samples_are_text_whatever_the_model_says) {
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    // Bytes are the tokens: each character of the prompt is cut between several.
    const char* prompt = "\xf0\x9f\x98\x80 \xe4\xb8\xad\xe6\x96\x87 \xc3\xa4";
    size_t shown = 0;
    for (int seed = 1; seed <= 12; seed++) {  // one token in 257 ends the text
        CHECK_SH(0, "$P --sample '%s' --tokens 2000 --temperature 5 --seed %d --out $W/run", prompt, seed);
        CHECK(!strncmp(output, prompt, strlen(prompt)));
        check_shown("a sample");
        shown += strlen(output);
    }
    CHECK(shown > 1000 && shown < 12 * 2000);
}

CLAIM(overfitting_one_batch_reaches_a_small_loss) {
    double losses[256];
    CHECK_SH(0, "$P " TINY " --overfit --steps 150 --lr 0.01 --adamw decay=0 --save-every 0 --out $W/overfit");
    int n = log_values("overfit", "loss", losses, 256);
    CHECK(n == 150 && losses[0] > 5 && losses[149] < 0.3);
    printf("    loss %.3f -> %.3f\n", losses[0], n ? losses[n - 1] : NAN);
}

PROGRAM_TEST {
    sh("mkdir $W/corpus && cp plan/*/*.c plan/*/*.h $W/corpus && rm $W/corpus/config.c");
}
