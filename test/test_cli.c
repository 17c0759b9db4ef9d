// test_cli.c - what a person gets to see: one clear line for each mistake, help, and a first run that works.
#include "plan/base/text.h"
#include "test/program.h"

#define TINY                                                                                                     \
    "--data $W/corpus --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 2 --eval-every 0 " \
    "--sample-every 0 "                                                                                          \
    "--out $W/run"

CLAIM(mistaken_options_get_one_line) {
    static const Refusal rows[] = {
        {"--bach-tokens 5", "--bach-tokens & --batch-tokens", 0},
        {"--steps -4", "--steps & 0 to", 0},
        {"--lr fast", "--lr & fast", 0},
        {"--capacity 100 --context 256", "--capacity 100 & --capacity 256", 0},
        {"--capacity 300,ranks=4x", "--capacity ranks & \"^4x\": FIRST", 0},
        {"--arch kv-heads=2", "--arch kv-heads=2,head-size=32: a GPT-2 & --arch llama", 0},
        {"--data $W/corpus --arch llama,theta=0.5 --out $W/refused", "could be read again & rope_theta", 0},
        {"--device cuda", "cuda & --device cpu", 0},
        {"--data $W/corpus --tp 2", "--tp & mpirun -n 2", 0},
        {"--data $W/corpus --straggle rank=1", "--straggle & rank=^1", 0},
        {"--plan flexible", "--plan & flex|adaptive|static|flexsp|hydraulis|zeppelin|megatron|fixed", 0},
        {"--sample", "--sample & value", 0},
        {"train.txt", "train.txt & --data", 0},
    };
    CHECK_REFUSALS("", rows);
}

CLAIM(unusable_data_gets_one_line) {
    static const Refusal rows[] = {
        {"--data $W/nothing", "nothing", 0},
        {"--data $W/empty", "empty", 0},
        {"--data $W/empty.txt", "empty.txt", 0},
        {"--data $W/junk.txt", "junk.txt", 0},
        {"--data $W/bad.jsonl", "bad.jsonl:2 & text", 0},
        {"--data $W/torn.jsonl", "torn.jsonl:1", 0},
        {"--data $W/short.bin", "short.bin", 0},
        {"--data $W/zero.bin", "zero.bin", 0},
        {"--data '$W/*.nothing'", "nothing", 0},
        {"--data $W/corpus --val $W/empty", "--val & empty", 0},
        {"--data $W/corpus --tokenizer $W/junk.txt", "junk.txt", 0},
        {"--data $W/corpus --tokenizer $W/nothing", "nothing", 0},
    };
    sh("mkdir $W/empty; : > $W/empty.txt; head -c 5000 /dev/urandom > $W/junk.txt; printf '\\0\\0\\0' >> $W/junk.txt; "
       "printf '{\"text\": \"a b\"}\\n{\"text\": 5}\\n' > $W/bad.jsonl; printf '{\"text\": \"a' > $W/torn.jsonl; "
       "head -c 100 /dev/zero > $W/short.bin; head -c 4000 /dev/zero > $W/zero.bin");
    CHECK_REFUSALS("--out $W/refused", rows);
}

CLAIM(unusable_checkpoints_get_one_line) {
#define FROM "--out $W/refused --data $W/corpus --batch-tokens 256 --init "
    static const Refusal rows[] = {
        {"--resume --out $W/nowhere", "--resume & nowhere", 0},
        {"--init $W/nowhere", "nowhere", 0},
        {FROM "$W/torn", "model.safetensors", 0},
        {FROM "$W/json", "config.json", 0},
        {FROM "$W/relu", "gelu_new & relu", 0},
        {FROM "$W/unfinished", "DONE", 0},
        {FROM "$W/c --heads 3", "--heads 3 & found 2", 0},
        {"--sample x --out $W/empty-run", "--sample & empty-run", 0},
    };
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    sh("cp -r $W/run/step-000002 $W/c && rm $W/c/DONE $W/c/state.json && cp -r $W/c $W/torn && truncate -s 3000 "
       "$W/torn/model.safetensors && "
       "cp -r $W/c $W/json && echo '{\"n_layer\": ' > $W/json/config.json && cp -r $W/c $W/relu && "
       "sed -i s/gelu_new/relu/ $W/relu/config.json && cp -r $W/run/step-000002 $W/unfinished && rm "
       "$W/unfinished/DONE");
    CHECK_REFUSALS("", rows);
}

CLAIM(a_full_disk_leaves_the_older_checkpoint_whole) {
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    // No file may grow past 64 KiB: writing fails in the middle, as on a full disk.
    CHECK_SH(1, "ulimit -f 128; exec $P --resume --steps 4 --out $W/run");
    CHECK_SAID("File too large; raise the limit of a file's size (ulimit -f)");
    CHECK_SH(0, "ls $W/run/step-000002/DONE && ! ls -d $W/run/step-000004* $W/run/*.tmp");
    CHECK_SH(0, "$P --resume --steps 4 --out $W/run");
}

CLAIM(a_run_prints_what_it_understood_before_it_starts) {
    CHECK_SH(0, "rm -rf $W/run && $P " TINY " --eval-every 1 --verbose");
    const char* parts[] = {"options",    "model",       "data",    "device",   "memory",
                           "parameters", "activations", "total",   "step 1/2", "validation loss",
                           "unigram",    "loss hash",   "--sample"};
    const char* at = output;
    for (int i = 0; i < COUNT(parts); i++) CHECK(at && (at = strstr(at, parts[i])) != NULL);
    CHECK_SAID("!\033 & !\r");  // no terminal: no colour, no rewriting
}

CLAIM(the_first_screen_has_five_lines_and_then_the_loss) {
    static const char* const begins[] = {"model   ", "data    ", "device  ",
                                         "memory  ", "run     ", "step 1/2 | loss "};
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    const char* line = output;
    for (int i = 0; i < COUNT(begins) && line; i++, line = line ? line + 1 : NULL) {
        CHECK(!strncmp(line, begins[i], strlen(begins[i])));
        line = strchr(line, '\n');
    }
}

// Nothing in the output but lines of text: what the filter of foreign text leaves alone.
static void check_shown(void) {
    TextFilter t = {{0}, 0, 0};
    size_t n = strlen(output), at = 0, wrong = 0;
    for (size_t i = 0; i < n; i++) {
        char part[TEXT_MOST];
        int more = text_filter(&t, (unsigned char)output[i], 1, part);
        if (more > 0 && memcmp(output + at, part, (size_t)more) != 0) wrong++;
        at += (size_t)more;
    }
    CHECK(wrong == 0 && at == n && has_words(output, "!\033 & !\xc2\x9b"));
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
        CHECK_REFUSED("e?]0;x??31m??z?", "$P %s", mistakes[i]);
        check_shown();
    }
    CHECK_SH(0, "cp -r $W/corpus \"$W/texts$EVIL\" && $P " TINY " --data \"$W/texts$EVIL\" --out \"$W/out$EVIL\"");
    CHECK_SAID("oute?]0;x??31m??z?");
    check_shown();
    CHECK_SH(0,
             "cp -r $W/out*/step-000002 $W/odd && rm $W/odd/DONE $W/odd/state.json && "
             "sed -i \"s/gelu_new/$(printf '\\302\\233')31m/\" $W/odd/config.json");
    CHECK_REFUSED("gelu_new & ?31m", "$P --init $W/odd --data $W/corpus");
    check_shown();
}

CLAIM(samples_are_text_whatever_the_model_says) {
    CHECK_SH(0, "rm -rf $W/run && $P " TINY);
    // Bytes are the tokens: each character of the prompt is cut between several.
    const char* prompt = "\xf0\x9f\x98\x80 \xe4\xb8\xad\xe6\x96\x87 \xc3\xa4";
    size_t shown = 0;
    for (int seed = 1; seed <= 12; seed++) {  // one token in 257 ends the text
        CHECK_SH(0, "$P --sample '%s' --tokens 2000 --temperature 5 --seed %d --out $W/run", prompt, seed);
        CHECK(!strncmp(output, prompt, strlen(prompt)));
        check_shown();
        shown += strlen(output);
    }
    CHECK(shown > 1000 && shown < 12 * 2000);
}

CLAIM(overfitting_one_batch_reaches_a_small_loss) {
    double losses[256];
    CHECK_SH(0, "$P " TINY " --overfit --steps 150 --lr 0.01 --adamw decay=0 --save-every 0 --out $W/overfit");
    int n = log_values("overfit", "loss", losses, 256);
    CHECK(n == 150 && losses[0] > 5 && losses[149] < 0.3);
}

PROGRAM_TEST { sh("mkdir $W/corpus && cp plan/*/*.c plan/*/*.h $W/corpus && rm $W/corpus/config.c"); }
