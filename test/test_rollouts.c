// test_rollouts.c - --rollouts: which tokens are drawn, how likely they are, by how many ranks, and what is refused.
//
//   build/release/test/test_rollouts build/release/train
#include "run/rl/rollouts.h"
#include "run/step/step.h"
#include "test/program.h"
#include "test/readers.h"

#define TINY                                                                                               \
    "--layers 2 --width 32 --heads 2 --context 48 --batch-tokens 512 --steps 40 --lr 4e-3 --eval-every 0 " \
    "--sample-every 0 --dtype fp32 "
#define ROLL "$P --out $W/run --dtype fp32 --data $W/prompts.jsonl --answers 5 --tokens 6 --temperature 1.5 --top-k 40 "

enum { PROMPTS = 5, ANSWERS = 5, MOST = 6, CONTEXT = 48 };

typedef struct Answer {
    int n, tokens[CONTEXT], ended;
    double logprobs[CONTEXT];
    char text[8 * CONTEXT];
} Answer;

static int ends[2];  // tokens, each of which ends an answer
static Json json;    // of the line at work
static char lines[1 << 25];

// Line j of a file of rollouts.
static void read_line(const char* name, int j) {
    char err[ERR_BYTES];
    const char* line = lines;
    read_text(path_of(name), lines, sizeof lines);
    while (j-- > 0 && (line = strchr(line, '\n'))) line++;
    CHECK(line && json_parse(&json, line, strcspn(line, "\n"), err) == 0);
}

static Answer answer_of(int i) {
    Answer a = {0};
    const JsonValue* value = json_at(json_get(json.values, "answers"), i);
    const JsonValue *tokens = json_get(value, "tokens"), *logprobs = json_get(value, "logprobs");
    CHECK(tokens && logprobs && tokens->n == logprobs->n && tokens->n > 0 && tokens->n <= CONTEXT);
    for (; tokens && a.n < tokens->n; a.n++) {
        int64_t token = -1;
        CHECK(json_int64(json_at(tokens, a.n), &token) == 0);
        CHECK(json_double(json_at(logprobs, a.n), &a.logprobs[a.n]) == 0 && a.logprobs[a.n] <= 0);
        a.tokens[a.n] = (int)token;
    }
    a.ended = json_get(value, "ended")->type == JSON_TRUE;
    CHECK(json_string(json_get(value, "text"), a.text) >= 0);
    for (int t = 0; t < a.n; t++)
        CHECK((a.tokens[t] == ends[0] || a.tokens[t] == ends[1]) == (a.ended && t == a.n - 1));
    return a;
}

// ---- which tokens

// The first n answers to each prompt are the same in two files: their tokens, and how likely they are up to rounding.
static void check_alike(const char* one, const char* other, int n) {
    for (int j = 0; j < PROMPTS; j++)
        for (int i = 0; i < n; i++) {
            read_line(one, j);
            Answer x = answer_of(i);
            json_free(&json);
            read_line(other, j);
            Answer y = answer_of(i);
            json_free(&json);
            CHECK(x.n == y.n && x.ended == y.ended && !strcmp(x.text, y.text));
            for (int t = 0; t < MIN(x.n, y.n); t++) {
                CHECK(x.tokens[t] == y.tokens[t]);
                CHECK_CLOSE(x.logprobs[t], y.logprobs[t], 1e-5 * fmax(1, fabs(x.logprobs[t])));
            }
        }
}

CLAIM(a_seed_gives_the_same_file_again_and_another_seed_another) {
    CHECK_SH(0, ROLL "--rollouts $W/a --seed 7 && " ROLL "--rollouts $W/b --seed 7 && cmp $W/a $W/b");
    CHECK_SH(1, ROLL "--rollouts $W/b --seed 8 && cmp -s $W/a $W/b");
    CHECK_SH(0, ROLL "--rollouts $W/b --seed 7 --answers 2");
    check_alike("a", "b", 2);
}

// The model in this program, as --rollouts opens it.
static Run* opened(void) {
    static Run run;
    static char out[600], data[600], file[600];
    static char* words[] = {"train", "--out",    out, "--data",        data,  "--rollouts", file, "--answers",
                            "5",     "--tokens", "6", "--temperature", "1.5", "--top-k",    "40", NULL};
    snprintf(out, sizeof out, "%s", path_of("run"));
    snprintf(data, sizeof data, "%s", path_of("prompts.jsonl"));
    snprintf(file, sizeof file, "%s", path_of("inside"));
    run.argc = COUNT(words) - 1, run.argv = words, run.began = now_seconds();
    ALL_MECHANISMS(&run, open);
    return &run;
}

// Every token by the whole text before it, none of which is in a cache.
static void check_alone(Run* run, int j, int i, const Answer* a, const int* prompt, int n_prompt) {
    int text[CONTEXT], n = n_prompt;
    memcpy(text, prompt, sizeof *text * (size_t)n);
    for (int t = 0; t < a->n; t++) {
        run_decode(run, text, &n, 1, 0, 0);
        run->draws->u = random_uniform(rollouts_seed((uint64_t)run->config.seed, j, i), (uint64_t)t);
        run_draw(run, n - 1, 1);
        CHECK(run->draws->token == a->tokens[t]);
        CHECK_CLOSE(log_softmax(token_logits(run, n - 1), run->model.shape.V, a->tokens[t]), a->logprobs[t], 1e-5);
        text[n++] = a->tokens[t];
    }
}

CLAIM(answers_that_share_a_prompt_are_those_that_each_text_alone_gives) {
    Run* run = opened();
    int different = 0;
    run->instead(run);
    for (int j = 0; j < PROMPTS; j++) {
        char text[CONTEXT];
        int prompt[CONTEXT];
        Answer first;
        read_line("inside", j);
        int64_t n = json_string(json_get(json.values, "prompt"), text);
        prompt[0] = byte_tokenizer.end_of_text;
        for (int t = 0; t < n; t++) prompt[1 + t] = (unsigned char)text[t];
        for (int i = 0; i < ANSWERS; i++) {
            Answer a = answer_of(i);
            if (i == 0) first = a;
            different += memcmp(a.tokens, first.tokens, sizeof a.tokens) != 0;
            CHECK(a.ended || a.n == MIN(MOST, CONTEXT - 1 - (int)n));
            check_alone(run, j, i, &a, prompt, 1 + (int)n);
        }
        json_free(&json);
    }
    CHECK(different > PROMPTS);
}

// 25 at once; 200 in 48 places, where each that ends makes room for another, of this prompt or of the next.
CLAIM(how_many_answers_stand_side_by_side_changes_none) {
    CHECK_SH(0, ROLL "--rollouts $W/a");
    CHECK_SH(0, ROLL "--rollouts $W/b --answers 40 --capacity 48");
    check_alike("a", "b", ANSWERS);
    CHECK_SH(0, ROLL "--rollouts $W/a --answers 40");
    check_alike("a", "b", 40);
}

CLAIM(at_temperature_0_each_answer_is_that_of_a_sample) {
    CHECK_SH(0, ROLL "--rollouts $W/a --temperature 0");
    read_line("a", 1);
    Answer a = answer_of(0), last = answer_of(ANSWERS - 1);
    json_free(&json);
    CHECK(!memcmp(&a, &last, sizeof a));
    CHECK_SH(0, "$P --out $W/run --sample 'bcd=' --tokens 6 --temperature 0");
    CHECK(!strncmp(output, "bcd=", 4) && !strncmp(output + 4, a.text, strlen(a.text)));
}

// Draws of one text go through the same op, also where ranks have parts of the vocabulary or of the model.
CLAIM(a_sample_is_the_same_on_any_ranks) {
    static const char* const ways[] = {"--ranks 2 --tp 2", "--ranks 2 --pp 2", "--ranks 4 --tp 2 --pp 2"};
    const char* sample = "$P --out $W/run --dtype fp32 --sample 'ab' --tokens 30 --temperature 2 --top-k 100";
    CHECK_SH(0, "%s > $W/one && test -s $W/one", sample);
    for (int i = 0; i < COUNT(ways); i++) CHECK_SH(0, "%s %s > $W/many && cmp $W/one $W/many", sample, ways[i]);
}

// ---- how likely they are

// Of those that ended, and that an evaluation sees: all their bytes are text.
CLAIM(log_probabilities_are_losses_of_an_evaluation_without_temperature) {
    double sum = 0;
    int tokens = 0, whole = 0;
    FILE* pairs = fopen(path_of("pairs.jsonl"), "w");
    CHECK_SH(0, ROLL "--rollouts $W/a");
    for (int j = 0; j < PROMPTS; j++) {
        read_line("a", j);
        const JsonValue* prompt = json_get(json.values, "prompt");
        for (int i = 0; i < ANSWERS; i++) {
            Answer a = answer_of(i);
            const JsonValue* answer = json_at(json_get(json.values, "answers"), i);
            const JsonValue* text = json_get(answer, "text");  // with its escapes
            if (!a.ended || (int)strlen(a.text) != a.n - 1) continue;
            fprintf(pairs, "{\"prompt\": \"%.*s\", \"completion\": \"%.*s\"}\n", (int)prompt->length, prompt->text,
                    (int)text->length, text->text);
            for (int t = 0; t < a.n; t++) sum -= a.logprobs[t];
            tokens += a.n, whole++;
        }
        json_free(&json);
    }
    fclose(pairs);
    CHECK(whole > 5);
    CHECK_SH(0, "$P --out $W/run --eval --dtype fp32 --data $W/pairs.jsonl");
    CHECK_SAID(filled(": %d targets", tokens));
    CHECK_CLOSE(strncmp(output, "loss ", 5) ? NAN : atof(output + 5), sum / tokens, 1e-5);
}

// Of all answers, as training reads them: by their tokens, in a tree. 60 prompts have answers in 48 places: those that
// come later take gaps of unlike lengths.
CLAIM(a_file_of_rollouts_is_data_whose_scores_are_its_log_probabilities) {
    CHECK_SH(0, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do cat $W/prompts.jsonl; done > $W/many.jsonl");
    CHECK_SH(0, ROLL "--data $W/many.jsonl --rollouts $W/rolled.jsonl --temperature 30 --top-k 0");
    if (last_status) return;
    CHECK_SH(0, "$P --out $W/run --dtype fp32 --data $W/rolled.jsonl --score $W/scores");
    for (int j = 0; j < 12 * PROMPTS; j++) {
        Answer all[ANSWERS];
        read_line("rolled.jsonl", j);
        for (int i = 0; i < ANSWERS; i++) all[i] = answer_of(i);
        json_free(&json);
        read_line("scores", j);
        const JsonValue* scores = json_get(json.values, "logprobs");
        for (int i = 0; i < ANSWERS; i++) {
            const JsonValue* list = json_at(scores, i);
            CHECK(list && list->n == all[i].n);
            for (int t = 0; list && t < MIN(list->n, all[i].n); t++) {
                double score = NAN;
                json_double(json_at(list, t), &score);
                CHECK_CLOSE(score, all[i].logprobs[t], 1e-5 * fmax(1, fabs(score)));
            }
        }
        json_free(&json);
    }
}

// ---- the file

// The last command has said how many there are, how long, and how many have ended.
static void check_summary(const char* name) {
    int tokens = 0, ended = 0;
    for (int j = 0; j < PROMPTS; j++) {
        read_line(name, j);
        for (int i = 0; i < ANSWERS; i++) {
            Answer a = answer_of(i);
            tokens += a.n, ended += a.ended;
        }
        json_free(&json);
    }
    CHECK(ended > 0 && ended < PROMPTS * ANSWERS);
    CHECK_SAID(filled("%d answers to %d prompts & %.1f tokens each, %.1f %% ended", PROMPTS * ANSWERS, PROMPTS,
                      (double)tokens / (PROMPTS * ANSWERS), 100.0 * ended / (PROMPTS * ANSWERS)));
}

CLAIM(any_ranks_draw_the_answers_of_one) {
    static const char* const ways[] = {"--ranks 2",        "--ranks 3",        "--ranks 2 --zero 3",
                                       "--ranks 4 --pp 2", "--ranks 2 --tp 2", "--ranks 4 --tp 2 --pp 2"};
    CHECK_SH(0, ROLL "--rollouts $W/a");
    for (int i = 0; i < COUNT(ways); i++) {
        CHECK_SH(0, ROLL "--rollouts $W/b %s", ways[i]);
        check_alike("a", "b", ANSWERS);
        check_summary("a");
    }
}

CLAIM(what_stands_there_and_is_no_file_is_written_into) {
    CHECK_SH(0, ROLL "--rollouts $W/a && ln -sf $W/a $W/link && " ROLL
                     "--rollouts $W/link --seed 9 && test -L $W/link && "
                     "test $(wc -l < $W/a) = 5");
    CHECK_SH(0, "cp $W/a $W/b; mkfifo $W/pipe; (cat $W/pipe > $W/piped) & " ROLL
                "--rollouts $W/pipe --seed 9; wait; "
                "test -p $W/pipe && cmp $W/b $W/piped");
    CHECK_SH(0, ROLL "--rollouts /dev/stdout --seed 9 | grep '^{' | cmp - $W/b");
    CHECK_SH(1, "ln -sf $W/nowhere $W/dangling; " ROLL "--rollouts $W/dangling");
    CHECK_SAID("a link to what is not there");
    CHECK_SH(0,
             "cp $W/b $W/b.jsonl && $P --out $W/run --dtype fp32 --data $W/b.jsonl --score /dev/stdout | "
             "grep -c '^{' | grep -qx 5");
}

CLAIM(a_line_keeps_its_other_members_and_text_is_utf8) {
    CHECK_SH(0, ROLL "--rollouts $W/a --temperature 100 --top-k 0");
    read_line("a", 2);
    int64_t id = 0;
    CHECK(json_int64(json_get(json.values, "id"), &id) == 0 && id == 7);
    CHECK(json_is(json_get(json_get(json.values, "deep"), "a"), "\"b\\"));
    CHECK(json_get(json.values, "answers")->n == ANSWERS && json.values->n == 4);
    json_free(&json);
    CHECK(strstr(lines, "\xef\xbf\xbd"));
    CHECK_SH(0, "! iconv -f utf-8 -t utf-8 $W/a > $W/b || cmp $W/a $W/b");
}

// The vocabulary of bytes has one token that begins texts and ends them; this one has two, and both end answers.
CLAIM(both_tokens_of_a_vocabulary_that_bound_texts_end_answers) {
    int by[2] = {0}, of_bytes = ends[0];
    ends[0] = 1256, ends[1] = 1257;
    CHECK_SH(0, "$P " TINY
                "--tokenizer test/golden/tokenizers/llama3.json --data $W/train.jsonl --out $W/words && $P "
                "--out $W/words --dtype fp32 --data $W/prompts.jsonl --answers 200 --tokens 6 --temperature 100 "
                "--rollouts $W/a");
    for (int j = 0; j < PROMPTS; j++) {
        read_line("a", j);
        for (int i = 0; i < 200; i++) {
            Answer a = answer_of(i);
            CHECK(!strstr(a.text, "<|begin_of") && !strstr(a.text, "<|end_of"));
            for (int k = 0; k < 2; k++) by[k] += a.tokens[a.n - 1] == ends[k];
        }
        json_free(&json);
    }
    CHECK(by[0] > 0 && by[1] > 0);
    ends[0] = ends[1] = of_bytes;
}

// A model has more ids than the tokenizer has texts: --data would refuse them.
CLAIM(ids_without_text_are_never_drawn) {
    CHECK_SH(0, "$P " TINY "--vocab 400 --steps 1 --data $W/train.jsonl --out $W/padded");
    CHECK_SH(0,
             "$P --out $W/padded --dtype fp32 --data $W/prompts.jsonl --rollouts $W/a --answers 30 --temperature 100");
    for (int j = 0; j < PROMPTS; j++) {
        read_line("a", j);
        for (int i = 0; i < 30; i++) {
            Answer a = answer_of(i);
            for (int t = 0; t < a.n; t++) CHECK(a.tokens[t] <= byte_tokenizer.end_of_text);
        }
        json_free(&json);
    }
    CHECK_SH(0, "$P --out $W/padded --dtype fp32 --data $W/a --score $W/scores");
}

CLAIM(what_is_no_prompt_is_refused_before_a_file_is_touched) {
    static const Refusal rows[] = {
        {"--data plan/base/base.h", "base.h:1: & expects {\"prompt\"", 0},
        {"--data $W/pairs.txt", "pairs.txt:2: no \"prompt\" or \"messages\" in it, but \"text\"", 0},
        {"--data $W/prompts.jsonl $W/pairs.txt", "pairs.txt:2: no \"prompt\" or \"messages\"", 0},
        {"--data $W/long.jsonl", "long.jsonl:2: the prompt has 48 tokens & --context 48", 0},
        {"--data $W/empty.jsonl", "empty.jsonl:1: a prompt without tokens", 0},
        {"--data $W/number.jsonl", "number.jsonl:1: \"prompt\" is neither a string", 0},
        {"--data $W/corpus --tokens 3", "corpus: cannot read", 0},
        {"--data /dev/null", "no prompts in --data", 0},
        {"--tokens 3", "expected the prompts, found none", 0},
        {"--data $W/prompts.jsonl --rollouts $W/nowhere/a", "nowhere: cannot write there", 0},
        {"--data $W/prompts.jsonl --rollouts $W", "expected a file to write", 0},
        {"--data $W/prompts.jsonl --device virtual --machine a100-7b", "has no --rollouts", 0},
    };
    CHECK_SH(
        0,
        "mkdir -p $W/corpus; echo '{\"prompt\": \"\"}' > $W/empty.jsonl; echo '{\"prompt\": 1}' > $W/number.jsonl; "
        "printf '{\"prompt\": \"a\"}\\n{\"text\": \"b\"}\\n' > $W/pairs.txt; "
        "printf '\\n{\"prompt\": \"%%047d\"}\\n' 0 > $W/long.jsonl; echo before > $W/whole");
    check_refusals("--out $W/run --rollouts $W/whole", rows, COUNT(rows));
    CHECK_SH(0, "grep -qx before $W/whole");
}

// Of the first prompt some are there, none of them cut off, and no line is empty. All would take half a minute.
CLAIM(a_signal_leaves_the_answers_that_were_finished) {
    CHECK_SH(0,
             "mkdir -p $W/alone; echo before > $W/alone/a; head -n 1 $W/prompts.jsonl > $W/first.jsonl; "
             "echo '{\"prompt\": \"b\"}' >> $W/first.jsonl");
    pid_t pid = start(
        "$P --out $W/run --data $W/first.jsonl --rollouts $W/alone/a --answers 65536 --tokens 47 "
        "--temperature 100");
    sleep_ms(1500);
    kill(pid, SIGINT);
    CHECK(ended_within(pid, 10) == 128 + SIGINT);
    CHECK_SH(0, "test $(ls $W/alone | wc -l) = 1 && test $(wc -l < $W/alone/a) = 1");
    read_line("alone/a", 0);
    int n = json.values ? json_get(json.values, "answers")->n : 0;
    CHECK(n > 0 && n < 65536);
    for (int i = 0; i < MIN(n, 200); i++) {  // the first ones, and the last ones
        Answer a = answer_of(i < 100 ? i : MAX(0, n - 200) + i);
        CHECK(a.ended || a.n == CONTEXT - 12);
    }
    json_free(&json);
}

// Each of 100,000 prompts has one answer here, so most of those at work have none that is finished.
CLAIM(a_signal_leaves_no_line_without_answers) {
    CHECK_SH(0, "mkdir -p $W/single; yes '{\"prompt\": \"b\"}' | head -n 100000 > $W/each.jsonl");
    pid_t pid =
        start("$P --out $W/run --data $W/each.jsonl --rollouts $W/single/a --answers 1 --tokens 40 --temperature 100");
    CHECK(comes("background", 20));
    sleep_ms(1000);
    kill(pid, SIGINT);
    CHECK(ended_within(pid, 10) == 128 + SIGINT);
    CHECK_SH(0, "test -s $W/single/a && ! grep -q '\"answers\": \\[\\]' $W/single/a");
}

CLAIM(an_end_without_a_word_leaves_the_file_that_was_there) {
    CHECK_SH(0, "mkdir -p $W/killed; echo before > $W/killed/a");
    pid_t pid = start("$P --out $W/run --data $W/prompts.jsonl --rollouts $W/killed/a --answers 60000 --tokens 47");
    sleep_ms(700);
    kill(pid, SIGKILL);
    CHECK(ended_within(pid, 10) != 0);
    CHECK_SH(0, "grep -qx before $W/killed/a && test $(ls $W/killed | wc -l) = 1");
}

PROGRAM_TEST {
    ends[0] = ends[1] = byte_tokenizer.stop;
    FILE* pairs = fopen(path_of("train.jsonl"), "w");
    for (uint64_t d = 0; d < 200; d++) {
        fprintf(pairs, "{\"prompt\": \"");
        for (uint64_t i = 0; i < 2 + d % 5; i++) fputc('a' + (int)(6 * random_uniform(d, i)), pairs);
        fprintf(pairs, "=\", \"completion\": \"%.*s\"}\n", (int)(1 + d % 4), "aaaa");
    }
    fclose(pairs);
    put_text("prompts.jsonl", quoted("{'prompt': 'aabbccddee='}\n{'prompt': 'bcd='}\n"
                                     "{'id': 7, 'prompt': 'f=', 'answers': ['x'], 'deep': {'a': '\\\"b\\\\'}}\n\n"
                                     "{'prompt': 'a'}\n{'prompt': 'abcdefabcdefabcdefabcdefabcdefabcdefabcdefa'}\n"));
    sh("$P " TINY "--data $W/train.jsonl --out $W/run");
}
