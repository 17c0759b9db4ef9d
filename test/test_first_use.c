// test_first_use.c - what a person meets in the first hour: lines that fit the terminal, words that are understood,
// runs that move, models from elsewhere, data that is said to be left out.
#include "data/runlog.h"
#include "plan/options/read.h"
#include "plan/base/terminal.h"
#include "test/program.h"
#include "test/vocabulary.h"

#define TINY                                                                                                   \
    "--layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 2 --eval-every 0 --sample-every " \
    "0 "

// ---- the line of a step

static StepRecord record(int64_t step, double loss) {
    StepRecord r = {.step = step, .steps = 3500, .loss = loss, .grad_norm = 1.5, .lr = 4e-5, .tokens = 1000};
    r.seconds = 0.05, r.mfu = 0.483, r.seconds_left = 187;
    return r;
}

static const char* line_of(Smooth* s, const StepRecord* r, int columns) {
    static char line[256];
    if (columns == 0) progress_add(s, r);
    progress_line(line, sizeof line, s, r, columns);
    return line;
}

CLAIM(a_progress_line_fits_the_terminal_by_leaving_out_fields) {
    static const struct {
        int columns;
        const char* line;
    } cases[] = {
        {0, "step   12/3500 | loss 2.0000 | norm 1.500 | lr 4.00e-05 | 20k tok/s | 48.3% of peak | 3m07s left"},
        {81, "step   12/3500 | loss 2.0000 | norm 1.500 | lr 4.00e-05 | 20k tok/s | 3m07s left"},
        {80, "step   12/3500 | loss 2.0000 | lr 4.00e-05 | 20k tok/s | 3m07s left"},
        {5, "step   12/3500 | loss 2.0000"}};
    Smooth s = {0};
    StepRecord r = record(12, 2);
    for (int i = 0; i < COUNT(cases); i++) CHECK_STRING(line_of(&s, &r, cases[i].columns), cases[i].line);
    for (int columns = 29; columns <= 120; columns++) {
        const char* line = line_of(&s, &r, columns);
        CHECK((int)strlen(line) < columns && strstr(line, "step") && strstr(line, "loss"));
    }
    s = (Smooth){0}, r.mfu = 1.2;  // the peak was measured while others computed: there is no share above it
    CHECK(!strstr(line_of(&s, &r, 0), "peak") && strstr(line_of(&s, &r, 120), "| 20k tok/s | 3m07s left"));
}

// Three steps of like lengths that had all, a half and a quarter of the cores: what they were of the peak while they
// had them counts by how long that was.
CLAIM(the_share_of_the_peak_is_a_mean_by_processor_time) {
    const char* line = "";
    Smooth s = {0};
    double at_peak = 0, busy = 0, seconds = 0;
    for (int i = 0; i < 3; i++) {
        StepRecord r = record(i + 1, 2);
        r.used = r.had = 1.0 / (1 << i), r.cores = 2, r.mfu = 0.2 * (i + 1);
        at_peak = 0.9 * at_peak + r.mfu * r.used, busy = 0.9 * busy + r.had, seconds = 0.9 * seconds + 1;
        line = line_of(&s, &r, 0);
        CHECK((strstr(line, "had ") != NULL) == (i > 0));
    }
    CHECK(
        strstr(line, filled("| %.1f%% of peak | had %.0f%% of 2 cores |", 100 * at_peak / busy, 100 * busy / seconds)));
}

CLAIM(the_line_shows_means_and_the_log_each_step) {
    Smooth s = {0};
    double weights = 0, sum = 0;
    for (int i = 0; i < 30; i++) {
        StepRecord r = record(i + 1, i % 2 ? 3 : 1);
        weights = 0.9 * weights + 1, sum = 0.9 * sum + r.loss;
        CHECK(strstr(line_of(&s, &r, 0), "loss "));
    }
    CHECK_CLOSE(s.loss / s.losses, sum / weights, 1e-12);
    StepRecord lost = record(31, NAN);
    double before = s.loss / s.losses;
    CHECK(strstr(line_of(&s, &lost, 0), "loss 2.0") && s.loss / s.losses == before);  // not known: nothing changes
}

// script(1) gives the program a terminal of its own.
CLAIM(a_narrow_terminal_sees_no_line_that_wraps) {
    if (sh("command -v script") || sh("script -qec true /dev/null < /dev/null")) SKIP("no script(1) here");
    CHECK_SH(0, "script -qec \"stty cols 50; $P " TINY
                "--steps 30 --data plan --save-every 0 --out $W/narrow\" /dev/null "
                "< /dev/null | tr '\\r' '\\n' | sed 's/\\x1b[[]K//' > $W/lines; awk "
                "'length($0) > 50' $W/lines | wc -l; grep '^step .*|' $W/lines | wc -l");
    int wide = -1, lines = 0;
    CHECK(sscanf(output, "%d %d", &wide, &lines) == 2 && wide == 0 && lines >= 2);
    // Wrapped between words, of which none is lost; to a file a line stays one.
    CHECK_SH(0,
             "script -qec \"stty cols 80; $P " TINY
             "--ranks 2 --data plan --explain --out $W/narrow\" /dev/null < "
             "/dev/null | sed 's/\\x1b[[]K//; s/\\r//g' > $W/lines; $P " TINY
             "--ranks 2 --data plan --explain --out $W/narrow > "
             "$W/whole; awk 'length($0) > 80' $W/lines | wc -l; awk 'length($0) > 80' $W/whole | wc -l; for f in lines "
             "whole; do sed 's/[0-9.]*//g; /makespan/,$d' $W/$f | tr -s ' \\n' ' ' | cksum; done");
    unsigned words[2] = {0};
    CHECK(sscanf(output, "%d %d %u %*u %u", &wide, &lines, &words[0], &words[1]) == 4 && wide == 0 && lines > 2);
    CHECK(words[0] == words[1] && words[0]);
    static const char* const plain[] = {"TERM=dumb", "NO_COLOR=1",
                                        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "
                                        "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"};
    for (int i = 0; i < COUNT(plain); i++) {
        CHECK_SH(0,
                 "script -qec \"env %s $P " TINY "--data plan --save-every 0 --out $W/plain%d\" /dev/null < /dev/null",
                 plain[i], i);
        CHECK(strstr(output, "step 1/2") && !strchr(output, '\033') && !strstr(output, "\rstep"));
    }
}

// ---- words

CLAIM(an_option_that_stands_twice_is_told) {
    CHECK_SH(0, "$P -h && $P --version");
    CHECK_SAID("--batch-tokens & usage: & \nragged 1.");
    CHECK_SH(1, "$P --data plan --steps 3 --data=$W/nowhere");
    CHECK_SAID("--data stands there twice");
}

// A hint is pasted into a shell: it must name what was meant.
CLAIM(hints_paste_into_a_shell) {
    static const char* const names[] = {"plain", "two words", "a'b\"c", "$(rm x)", "*;&", "~", ""};
    char word[256];
    for (int i = 0; i < COUNT(names); i++) {
        text_quoted(names[i], word, sizeof word);
        setenv("EXPECTED", names[i], 1);
        CHECK_SH(0, "test \"$EXPECTED\" = %s", word);
    }
    text_quoted("runs/0", word, sizeof word);
    CHECK_STRING(word, "runs/0");
    CHECK_STRING(text_quoted("a'b'c'd e", word, 8), "'a'");  // nothing is written behind the room
    CHECK_SH(0, "$P " TINY "--data $W/b.txt --out \"$W/my run's\"");
    const char* hint = strstr(output, "--out ");
    char used[512] = "";
    CHECK(hint && sscanf(hint, "%511[^\n]", used) == 1);
    CHECK(sh("cd . && $P %s", used) == 0 && strlen(output) > 0 && errors[0] == 0);
}

// The prompts of headers, or the beginnings of texts that are not trained on, of instructions what was asked.
CLAIM(samples_of_a_run_begin_with_fixed_prompts) {
    const char* begins[] = {"#include <", "static inline ", "user: hi\n\nassistant: ", "user: hi\n\nassistant: "};
    CHECK_SH(0,
             "for i in $(seq 100); do printf '{\"instruction\": \"hi\", \"output\": \"%%s\"}\\n' $i; done > "
             "$W/asked.jsonl");
    for (int i = access("/usr/include/stdio.h", R_OK) ? 2 : 0; i < 4; i += 2) {
        CHECK_SH(0, "$P " TINY "--steps 2 --sample-every 1 --out $W/shown%d %s", i, i ? "--data $W/asked.jsonl" : "");
        const char* at = output;
        for (int k = 0; k < 4 && at; k++) {
            at = strstr(at, ": a sample\n");
            if (at) at += strlen(": a sample\n");
            CHECK(at && !strncmp(at, begins[i + k % 2], strlen(begins[i + k % 2])));
        }
    }
}

// ---- runs that move, models from elsewhere

CLAIM(a_run_goes_on_with_the_tokenizer_that_it_carries) {
    CHECK_SH(0, "mkdir $W/dir && cp test/golden/tokenizers/gpt2.json $W/dir/tokenizer.json && $P " TINY
                "--data $W/b.txt --tokenizer $W/dir --out $W/moving && rm -r $W/dir && mv $W/moving $W/moved && "
                "$P --resume --steps 3 --out $W/moved");
    CHECK_SH(0, "$P --out $W/moved --sample abc --tokens 4");
    CHECK_SH(0, "$P --init $W/moved/step-000003 --data $W/b.txt --steps 1 --out $W/tuned");
    CHECK_REFUSED("tokenizer.json & found neither", "$P --tokenizer $W --data $W/b.txt");
}

CLAIM(a_model_from_elsewhere_brings_its_training) {
    static const struct {
        char* argv[14];
        double lr, most_lr;
        int batch_tokens, warmup;
    } cases[] = {{{"train", "--init", "x", "--layers", "12", "--width", "768", "--heads", "12", "--vocab", "50257",
                   "--context", "1024"},
                  2e-5,
                  5e-5,
                  32768,
                  20},
                 {{"train", "--preset", "gpt2-124m"}, 6e-4, 6e-4, 524288, 200},  // a tenth of 2000 steps
                 {{"train", "--preset", "gpt2-124m", "--lr", "0.001", "--warmup", "7", "--batch-tokens", "2048"},
                  0.001,
                  0.001,
                  2048,
                  7}};
    Config config;
    for (int i = 0; i < COUNT(cases); i++) {
        int argc = 0;
        while (cases[i].argv[argc]) argc++;
        CHECK(config_read(&config, argc, (char**)cases[i].argv, err) == 0);
        CHECK(config_complete(&config, 50257, err) == 0 && config.context == 1024);
        CHECK(config.lr >= cases[i].lr && config.lr <= cases[i].most_lr);
        CHECK(config.batch_tokens == cases[i].batch_tokens && config.warmup == cases[i].warmup);
    }
}

CLAIM(bytes_in_a_vocabulary_made_for_words_are_said) {
#define WORDS                                                                                          \
    "$P --preset gpt2-124m --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 1 " \
    "--eval-every 0 --sample-every 0 --data $W/b.txt "
    CHECK_SH(0, WORDS "--out $W/bytes");
    CHECK_SAID("read as bytes, 257 of the 50257 tokens & --vocab 257");
    CHECK(sh(WORDS "--vocab 50257 --out $W/meant") == 0 && errors[0] == 0);  // who says so means it
    CHECK(sh(WORDS "--vocab 257 --out $W/small") == 0 && errors[0] == 0);
    // The run goes on, and its model begins another, without a second word; a model without a tokenizer is refused.
    CHECK(sh("$P --resume --steps 2 --out $W/bytes") == 0 && errors[0] == 0);
    CHECK_SH(0, "rm $W/bytes/step-000002/tokenizer.* $W/bytes/step-000002/DONE $W/bytes/step-000002/state.json");
    CHECK_REFUSED("expected a tokenizer of 50257 tokens & --tokenizer",
                  "$P --init $W/bytes/step-000002 --data $W/b.txt");
}

// Bytes, as ids of GPT-2's kind of shard: its end-of-text would be beyond the table of 257 tokens.
CLAIM(a_shard_of_bytes_makes_a_model_of_bytes) {
    enum { N = 4000 };
    static unsigned char shard[1024 + 2 * N];
    put_int32(shard, 20240520), put_int32(shard + 4, 1), put_int32(shard + 8, N);
    for (int i = 0; i < N; i++) {
        int token = i % 100 ? 'a' + i % 7 : 256;
        shard[1024 + 2 * i] = (unsigned char)token, shard[1024 + 2 * i + 1] = (unsigned char)(token >> 8);
    }
    write_text("letters.bin", shard, sizeof shard);
    CHECK_SH(0, "$P " TINY "--sample-every 1 --data $W/letters.bin --out $W/letters");
    CHECK_SAID("in 40 documents & a sample");
    CHECK_SH(0, "cat $W/letters/step-000002/config.json && $P --out $W/letters --sample ab --tokens 4");
    CHECK_SAID("\"bos_token_id\": 256, & \"eos_token_id\": 256, & ab");
}

CLAIM(a_folder_that_is_no_model_is_told_what_it_is) {
    static const Refusal rows[] = {{"--init $W/run", "is a run & step-000002", 0},
                                   {"--init $W/b.txt", "b.txt is a file, expected the directory & ; try --init /", 0},
                                   {"--init gpt2", "no such directory: gpt2 & downloaded", 0},
                                   {"--init plan", "Hugging Face & config.json", 0},
                                   {"--init $W/bare", "found no model.safetensors", 0},
                                   {"--init $W/torch", "pytorch_model.bin & safetensors", 0}};
    CHECK_SH(0,
             "mkdir $W/bare $W/torch && cp test/golden/gpt2/init/config.json $W/bare/ && cp $W/bare/* $W/torch && "
             "touch $W/torch/pytorch_model.bin && $P " TINY "--data $W/b.txt --out $W/run");
    CHECK_REFUSALS("--data $W/b.txt", rows);
    CHECK_SH(0, "$P --resume $W/run/step-000002/ --steps 3 && ls $W/run/step-000003");
}

// The cause by the option's name, and a way that leads on.
CLAIM(what_does_not_fit_is_told_with_what_to_do) {
#define LARGE "--layers 1000 --width 8192 --heads 64 --data $W/b.txt --explain --capacity 4096 --context "
    static const Refusal rows[] = {
        {"--data $W/b.txt --tokenizer gpt2", "--tokenizer: gpt2:  & must be downloaded first", 0},
        {"--data $W/shard.bin", "expected the tokenizer that made these shards & --tokenizer FILE", 0},
        {"--data $W/man", "/man/*.gz' & first passed over & compressed", 0},
        {"--data $W/b.txt --context 32768 --capacity 4096 --explain", "a smaller --context & mpirun -n 8", 0},
        {LARGE "4096", " of memory, the largest part for  & try a smaller --context, more ranks, ", 0},
        {LARGE "256", " available ( & try a smaller --capacity, ", 0}};
    CHECK_SH(0,
             "mkdir -p $W/man && gzip -c plan/base/base.h > $W/man/a.1.gz && $P --data $W/b.txt "
             "--tokenizer test/golden/tokenizers/gpt2.json --tokenize $W/shards && mv $W/shards/*.bin $W/shard.bin");
    CHECK_REFUSALS("--out $W/refused", rows);
    CHECK_SH(0, "$P " TINY "--data $W/man/*.gz --out $W/manual");
}

// A vocabulary that was read from llm.c's file, or is bytes, comes back from tokenizer.json with the same tokens.
static void check_export(const Tokenizer* t, const char* text) {
    size_t n = 0, length = strlen(text);
    char* json = tokenizer_json_text(t, &n);
    Tokenizer* again = parse(json, n);
    int *a = malloc(4 * length + 4), *b = malloc(4 * length + 4);
    CHECK(again && again->vocab == t->vocab && again->end_of_text == t->end_of_text);
    size_t n_a = t->encode(t, a, text, length), n_b = again ? again->encode(again, b, text, length) : 0;
    CHECK(n_a == n_b && !memcmp(a, b, n_a * sizeof *a));
    tokenizer_close(again);
    free(json), free(a), free(b);
}

CLAIM(exports_carry_a_tokenizer_that_others_read) {
    Tokenizer* bytes = NULL;
    Words words = {0};
    static char text[8192];
    read_text("README.md", text, sizeof text);
    CHECK(tokenizer_open(&bytes, NULL, err) == 0);
    check_export(bytes, text);
    check_export(bytes, "\x01\x7f\xc3\xa9\xf0\x9f\x98\x80 \"\\ \t\r\n");
    tokenizer_close(bytes);
    small_words(&words);
    Tokenizer* small = tokenizer_of(&words);
    check_export(small, "hello well, he held hell where the shell fell");
    tokenizer_close(small);
    CHECK_SH(0, "$P " TINY "--data $W/b.txt --out $W/exported");
    CHECK_SH(0, "cd $W/exported/step-000002 && ls tokenizer.bin tokenizer.json && cat tokenizer_config.json");
    CHECK_SAID("PreTrainedTokenizerFast & \"eos_token\": \"<|endoftext|>\" & \"model_max_length\": 64");
    if (sh("python3 -c 'import transformers'")) SKIP("transformers is not installed: AutoTokenizer was not asked");
    CHECK_SH(0,
             "python3 -c \"from transformers import AutoTokenizer as A; t = "
             "A.from_pretrained('$W/exported/step-000002'); "
             "s = 'int h\u00e9llo;\\n'; i = t(s).input_ids; print(i == list(s.encode()) and t.decode(i) == s)\"");
    CHECK_SAID("True");
}

CLAIM(make_install_takes_man_page_and_completions_from_the_help) {
    CHECK_SH(0, "scripts/help_to.sh man $P > $W/ragged.1 && scripts/help_to.sh bash $P > $W/complete");
    CHECK_SH(0, "grep -q '^.TH RAGGED 1' $W/ragged.1 && grep -q 'batch..tokens' $W/ragged.1");
    CHECK_SH(0, "grep '^.S[HS]' $W/ragged.1 | tr '\\n' ' '");
    CHECK_SAID(".SH EXAMPLES & .SH FILES & .SH SIGNALS & .SH EXIT STATUS");
    // Every word of the help is in the page, which fits a terminal.
    CHECK_SH(0,
             "$P --help all | grep -v ^[a-z] | tr -cs 'a-zA-Z' '\\n' | sort -u > $W/words; sed 's/[\\]-/-/g' "
             "$W/ragged.1 | tr -cs 'a-zA-Z' '\\n' | sort -u | comm -23 $W/words - | wc -l; ! command -v groff > "
             "/dev/null || groff -man -Tascii -P-bcou -ww $W/ragged.1 2>&1 | awk '/troff/ || length($0) > 80'");
    CHECK_STRING(output, "0\n");
    CHECK_SH(0, "head -n 20 README.md");
    CHECK_SAID("make install & checkpoint is a Hugging Face model & GGUF");
    CHECK_SH(0, "! command -v mandoc || ! mandoc -T lint -W warning $W/ragged.1");  // what is not here is not asked
    if (sh("command -v bash")) SKIP("no bash here");
    CHECK_SH(0,
             "bash -c '. $W/complete; COMP_WORDS=(train --schedule c); COMP_CWORD=2; _ragged; echo "
             "${COMPREPLY[@]}; COMP_WORDS=(train --resu); COMP_CWORD=1; _ragged; echo ${COMPREPLY[@]}'");
    CHECK_STRING(output, "cosine constant\n--resume\n");
}

// ---- what is said

CLAIM(a_run_that_goes_on_sees_another_validation_text) {
    CHECK_SH(0, "cp plan/base/text.h $W/v.txt && $P " TINY "--data $W/b.txt --val $W/v.txt --out $W/validated");
    CHECK_REFUSED("--val & differ", "echo more >> $W/v.txt; $P --resume --steps 3 --out $W/validated");
    CHECK_SH(0, "$P --resume --steps 3 --out $W/validated --val $W/v.txt");
    CHECK_SAID("do not compare");
}

CLAIM(the_log_begins_with_the_options_and_ends_with_how_it_ended) {
    CHECK_SH(0, "$P " TINY "--data $W/b.txt --out $W/logged");
    CHECK_SH(0, "head -n 1 $W/logged/log.jsonl | grep '^{.event.: .start., .at.: 0,.*.--context.: .64.'");
    CHECK_SH(0, "tail -n 1 $W/logged/log.jsonl | grep '.how.: .done.'");
    CHECK_SH(1, "grep -v ', .time.: [12][0-9.]*}$' $W/logged/log.jsonl");
    CHECK_SH(0, "$P --resume --steps 3 --out $W/logged");
    CHECK_SAID("!cannot be read");
    CHECK_SH(0, "test $(grep -c '.event.: .start.' $W/logged/log.jsonl) = 2");
}

CLAIM(a_run_of_no_steps_says_what_it_saved) {
    CHECK_SH(0, "$P " TINY "--steps 0 --data $W/b.txt --out $W/zero && ls $W/zero/step-000000/DONE");
    CHECK_SAID("saved & !nothing was saved");
}

CLAIM(words_before_a_plan_are_few_and_count_right) {
    CHECK_SH(0, "$P " TINY "--data $W/b.txt --explain --out $W/explained");
    const char* plan = strstr(output, "\nflex: step 1: 4 documents, 256 tokens on 1 rank\n");
    CHECK(plan && strstr(output, "in 1 document to train on"));
    if (plan) *(char*)plan = 0;
    CHECK(lines_in(output) <= 5);
}

CLAIM(virtual_ranks_have_no_loss_that_is_no_number) {
    CHECK_SH(0, "$P " TINY "--data plan --device virtual --machine a100-7b --out $W/virtual");
    CHECK_SAID("step 2/2 | lr & !nan");
}

CLAIM(validation_that_is_trained_on_and_tokenizers_that_are_misread_are_said) {
    CHECK_SH(0,
             "mkdir $W/both && cd plan/base && cp base.h $W/both/a.txt && cp text.h $W/both/b.txt && cp disk.h "
             "$W/c.txt && cd ../.. && $P " TINY "--data $W/both --val $W/b.txt $W/c.txt --out $W/seen");
    CHECK(strstr(errors, "1 document of the 2 in --val: also in --data") && lines_in(errors) == 1);
    CHECK_SH(0, "$P " TINY "--data $W/both --val $W/c.txt --out $W/unseen --arch qwen2");
    CHECK(strstr(errors, "AutoTokenizer cuts their text wrongly") && lines_in(errors) == 1);
    CHECK(sh("$P " TINY "--data $W/both --val $W/c.txt --out $W/qwen3 --arch qwen3") == 0 && errors[0] == 0);
}

PROGRAM_TEST { sh("cp plan/base/base.h $W/b.txt"); }
