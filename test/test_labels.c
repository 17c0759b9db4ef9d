// test_labels.c - labels that do not count alike: what an answer says of its labels, every --loss against PyTorch
// (dev/reference.py made test/golden), the same on any ranks, and --score.
//
//   build/release/test/test_labels build/release/train_checked
#include "data/docs_files.h"
#include "test/program.h"
#include "test/readers.h"
#include "test/tensors.h"

// ---- lines

static Docs* open_lines(const char* lines, Err err) {
    Docs* docs = NULL;
    const char* path = path_of("lines.jsonl");
    write_file(path, lines, strlen(lines));
    docs_open_as(&docs, &path, 1, &byte_tokenizer, (DocsReading){0}, err);
    return docs;
}

// Of token t of the only document.
static LabelTerms terms_at(const Docs* docs, int64_t t) {
    LabelTerms terms;
    docs_terms(docs, 0, t, 1, &terms);
    return terms;
}

CLAIM(answers_say_what_their_labels_count) {
    char err[ERR_BYTES] = "";
    Docs* docs = open_lines(
        "{\"prompt\": \"ab\", \"answers\": [\"c\", {\"text\": \"d\", \"weight\": 0.5, \"logprobs\": [-1, -2.5], "
        "\"reference\": [-3, -4]}, {\"tokens\": [101, 102], \"advantage\": -2, \"rank\": 3, \"ended\": false}]}\n",
        err);
    // . a | b c . | b d . | b e f: a copy of the prompt's last token stands before each answer
    CHECK(docs && docs_length(docs, 0) == 11);
    CHECK(terms_at(docs, 3).weight == 1 && isnan(terms_at(docs, 3).old) && isnan(terms_at(docs, 3).advantage));
    CHECK(terms_at(docs, 6).weight == 0.5f && terms_at(docs, 6).old == -1 && terms_at(docs, 6).reference == -3);
    CHECK(terms_at(docs, 7).weight == 0.5f && terms_at(docs, 7).old == -2.5f && terms_at(docs, 7).reference == -4);
    CHECK(terms_at(docs, 5).weight == 1 && terms_at(docs, 8).weight == 1);
    CHECK(terms_at(docs, 9).advantage == -2 && terms_at(docs, 10).advantage == -2 && terms_at(docs, 10).weight == 1);
    CHECK(docs_weight(docs, 0, 1, 10) == 2 + 2 * 0.5 + 2);
    const DocsSegment* list;
    CHECK(docs_segments(docs, 0, &list) == 4 && list[1].rank == -1 && list[3].rank == 3);
    docs_close(docs);
}

// advantages of answers of one letter with these rewards
static void check_rewards(const char* const* rewards, int n, const double* advantages) {
    char err[ERR_BYTES] = "", text[512] = "{\"prompt\": \"ab\", \"answers\": [";
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s{\"text\": \"c\", \"reward\": %s}", i ? ", " : "",
                 rewards[i]);
    strcat(text, "]}\n");
    Docs* docs = open_lines(text, err);
    CHECK(docs != NULL);
    for (int i = 0; i < n && docs; i++) CHECK_CLOSE(terms_at(docs, 3 + 3 * i).advantage, advantages[i], 1e-6);
    docs_close(docs);
}

// By hand, with n - 1: the deviation of 1, 0, 1, 0 is sqrt(1 / 3), of two that differ by 1 sqrt(1 / 2).
CLAIM(rewards_become_advantages_within_their_prompt) {
    double of_four = 0.5 / (sqrt(1.0 / 3) + 1e-6), of_two = 0.5 / (sqrt(0.5) + 1e-6);
    check_rewards((const char*[]){"1", "0", "1", "0"}, 4, (double[]){of_four, -of_four, of_four, -of_four});
    check_rewards((const char*[]){"1e8", "100000001"}, 2, (double[]){-of_two, of_two});
    check_rewards((const char*[]){"1e-6", "0"}, 2, (double[]){0.5 / (sqrt(0.5) + 1), -0.5 / (sqrt(0.5) + 1)});
    check_rewards((const char*[]){"0.1", "0.1", "0.1"}, 3, (double[]){0, 0, 0});
    check_rewards((const char*[]){"7"}, 1, (double[]){0});
}

// Sums over all labels, of documents that are split as those of the whole.
CLAIM(parts_of_a_split_tree_have_its_labels_with_their_terms_and_its_rewards) {
    double sums[2][4] = {{0}};
    for (int split = 0; split < 2; split++) {
        char err[ERR_BYTES] = "";
        DocsSplit told;
        LabelTerms terms;
        Docs* docs = open_lines(
            "{\"prompt\": \"abcdefgh\", \"answers\": [{\"text\": \"ijk\", \"logprobs\": [-1, -2, -3, -4], \"reward\": "
            "1}, "
            "{\"text\": \"lmnop\", \"logprobs\": [-6, -5, -4, -3, -2, -1], \"reward\": 0, \"weight\": 0.5}, "
            "{\"text\": \"qrs\", \"logprobs\": [-5, -5, -5, -5], \"reward\": 3}]}\n",
            err);
        CHECK(docs && (!split || (docs_split_trees(docs, 16, &told, err) == 0 && told.parts == 3)));
        for (int64_t doc = 0; doc < docs->n; doc++)
            for (int t = 1, target = 0; t < docs_length(docs, doc); t++, target = 0) {
                docs_learnt(docs, doc, t, 1, &target);
                docs_terms(docs, doc, t, 1, &terms);
                if (target < 0) continue;
                sums[split][0]++, sums[split][1] += terms.weight * terms.old, sums[split][2] += terms.advantage;
            }
        for (int64_t doc = 0; doc < docs->n; doc++) docs_rewards(docs, doc, &sums[split][3]);
        docs_close(docs);
    }
    CHECK(sums[0][0] == 14 && sums[0][3] == 4);
    for (int i = 0; i < 4; i++) CHECK_CLOSE(sums[1][i], sums[0][i], 1e-6);
}

// The weights of an answer are summed 256 tokens at a time, and this one has more.
CLAIM(weights_count_wherever_their_tokens_stand) {
    char err[ERR_BYTES] = "", text[301] = "";
    Docs* docs = open_lines(filled("{\"prompt\": \"ab\", \"answers\": [{\"text\": \"%s\", \"weight\": 0.5}, "
                                   "{\"text\": \"c\", \"weight\": 3}]}\n",
                                   (char*)memset(text, 'x', 300)),
                            err);
    CHECK(docs && docs_weight(docs, 0, 1, (int)docs_length(docs, 0) - 1) == 301 * 0.5 + 2 * 3);
    docs_close(docs);
}

// A run that resumes compares contents, and must not take other rewards or weights in silence.
CLAIM(what_answers_say_is_a_part_of_the_content) {
    static const char* const said[] = {"",
                                       ", \"reward\": 1",
                                       ", \"reward\": 2",
                                       ", \"advantage\": 0",
                                       ", \"weight\": 2",
                                       ", \"logprobs\": [-1, -2]",
                                       ", \"logprobs\": [-1, -3]",
                                       ", \"reference\": [-1, -2]",
                                       ", \"rank\": 0"};
    uint64_t content[COUNT(said)];
    for (int i = 0; i < COUNT(said); i++) {
        char err[ERR_BYTES] = "";
        Docs* docs = open_lines(filled("{\"prompt\": \"ab\", \"answers\": [{\"text\": \"c\"%s}]}\n", said[i]), err);
        content[i] = docs ? docs_content(docs) : 0;
        CHECK(docs);
        docs_close(docs);
        for (int j = 0; j < i; j++) CHECK(content[i] != content[j]);
    }
}

CLAIM(pairs_are_answers_of_two_ranks) {
    char err[ERR_BYTES] = "";
    Docs* docs = open_lines("{\"prompt\": \"ab\", \"chosen\": \"c\", \"rejected\": {\"text\": \"d\"}}\n", err);
    CHECK(docs && docs_pairs(docs, 0, 0, 0) == 1);
    docs_close(docs);
    docs = open_lines(
        "{\"prompt\": \"ab\", \"answers\": [{\"text\": \"c\", \"rank\": 0}, {\"text\": \"d\", \"rank\": 1}, "
        "{\"text\": \"e\", \"rank\": 1}, \"f\"]}\n",
        err);
    CHECK(docs && docs_pairs(docs, 0, 0, 0) == 2);
    docs_close(docs);
}

CLAIM(answers_that_say_it_wrongly_are_refused_by_name) {
#define ANSWER(members) "{\"prompt\": \"ab\", \"answers\": [{\"text\": \"cd\", " members "}]}\n"
    static const char* const rows[][2] = {
        {ANSWER("\"wieght\": 1"), "a member \"wieght\""},
        {ANSWER("\"weight\": -1"), "\"weight\" & from 0 on, found -1"},
        {ANSWER("\"weight\": 1e300"), "\"weight\" & finite"},
        {ANSWER("\"advantage\": \"x\""), "\"advantage\" & finite number"},
        {ANSWER("\"advantage\": 1, \"reward\": 1"), "expected one of them"},
        {ANSWER("\"logprobs\": [-1, -2]"), "\"logprobs\" & 3 numbers & found 2"},
        {ANSWER("\"logprobs\": [-1, -2, null]"), "number 2 of \"logprobs\""},
        {ANSWER("\"logprobs\": [-1, 0.5, -1]"), "number 1 of \"logprobs\" & at most 0"},
        {ANSWER("\"reference\": [0, 0, 1e-9]"), "number 2 of \"reference\" & at most 0"},
        {ANSWER("\"reference\": -1"), "\"reference\" & 3 numbers"},
        {ANSWER("\"rank\": 0.5"), "\"rank\" & whole number"},
        {"{\"prompt\": \"ab\", \"answers\": [{\"tokens\": [256, 257]}]}\n", "number 1 of the tokens & from 0 to 256"},
        {"{\"prompt\": \"ab\", \"answers\": [{\"tokens\": []}]}\n", "tokens & not empty"},
        {"{\"prompt\": \"ab\", \"answers\": [{\"weight\": 1}]}\n", "an answer as a string"},
        {"{\"prompt\": \"ab\", \"answers\": [{\"text\": \"c\", \"reward\": 1}, \"d\"]}\n", "of all 2 answers & of 1"},
    };
    for (int i = 0; i < COUNT(rows); i++) {
        char err[ERR_BYTES] = "";
        Docs* docs = open_lines(rows[i][0], err);
        CHECK(!docs && has_words(err, rows[i][1]) && has_words(err, "lines.jsonl:1"));
        docs_close(docs);
    }
}

// ---- losses

#define GOLDEN "--init test/golden/gpt2/init --batch-tokens 94 --context 48 --steps 1 --dtype fp32 "

static const struct {
    const char *loss, *file, *options;
} losses[] = {{"nll", "labels", ""},
              {"grpo", "labels", "--clip-low 0.2 --clip-high 0.28 --kl 0.05"},
              {"dpo", "pairs", "--beta 0.3"}};

static double golden_loss(const char* loss) {
    char text[1000];
    double value = NAN;
    Json json;
    if (json_parse(&json, text, read_text("test/golden/gpt2/labels.json", text, sizeof text), NULL)) return NAN;
    json_double(json_get(json.values, loss), &value);
    json_free(&json);
    return value;
}

static double said_loss(void) {
    const char* loss = strstr(output, "\nloss ");
    return loss ? strtod(loss + 6, NULL) : NAN;
}

// Loss i of the golden model, and its gradients in $W/grads.
static double loss_of(int i, int ranks, const char* options) {
    const char* file = losses[i].file;
    CHECK_SH(0,
             "%s$P " GOLDEN
             "--loss %s %s --data test/golden/%s.jsonl --val test/golden/%s.jsonl --out $W/run "
             "--dump-grads $W/grads %s",
             ranks > 1 ? filled(ON_RANKS, ranks) : "", losses[i].loss, losses[i].options, file, file, options);
    return said_loss();
}

// Of gradients: cuBLASLt's GELU' is off by 2e-6 (matmul_checks.h).
static double tolerance(void) { return strstr(program, "--device cuda") ? 1e-5 : 2e-6; }

static void check_golden(int i, int ranks, const char* options) {
    double loss = golden_loss(losses[i].loss);
    CHECK_CLOSE(loss_of(i, ranks, options), loss, 1e-6);
    const char* golden = filled("test/golden/gpt2/labels-%s.safetensors", losses[i].loss);
    CHECK_CLOSE(tensors_differ(path_of("grads"), golden, 0), 0, tolerance());
}

CLAIM(losses_and_gradients_are_those_of_pytorch) {
    static const char* const ways[] = {"", "--cpu-isa reference", "--capacity 60"};
    for (int i = 0; i < COUNT(losses); i++)
        for (int w = 0; w < COUNT(ways); w++) check_golden(i, 1, ways[w]);
}

CLAIM(losses_are_the_same_on_any_ranks) {
    static const struct {
        int ranks;
        const char* options;
    } ways[] = {{2, "--zero 3"}, {4, "--plan static --cp 4"}, {4, "--tp 2 --pp 2"}, {4, "--strategies 'tp2+2xtp1'"}};
    if (!has_mpirun()) SKIP("mpirun is not here");
    for (int i = 0; i < COUNT(losses); i++)
        for (int w = 0; w < COUNT(ways); w++) check_golden(i, ways[w].ranks, ways[w].options);
}

// Rows of up to 94 tokens go through the classifier 64 at a time, those of up to 60 at once.
CLAIM(labels_go_through_the_classifier_in_chunks) {
    double loss[2];
    for (int i = 0; i < 2; i++) {
        CHECK_SH(0,
                 "$P --layers 2 --width 16 --heads 2 --context 60 --vocab 700000 --batch-tokens 94 --capacity %d "
                 "--data test/golden/labels.jsonl --val test/golden/labels.jsonl --dtype fp32 --loss grpo --steps 1 "
                 "--out $W/run --dump-grads $W/grads-%d",
                 i ? 94 : 60, i);
        loss[i] = said_loss();
    }
    CHECK_CLOSE(loss[0], loss[1], 1e-6);
    CHECK_CLOSE(tensors_differ(path_of("grads-1"), path_of("grads-0"), 1), 0, tolerance());
}

CLAIM(a_loss_without_what_it_needs_is_refused) {
    put_text("plain.jsonl", "{\"prompt\": \"ab\", \"answers\": [\"c\", \"d\"]}\n");
    put_text("drawn.jsonl", "{\"prompt\": \"ab\", \"answers\": [{\"text\": \"c\", \"logprobs\": [-1, -1]}]}\n");
    put_text("alike.jsonl", "{\"prompt\": \"ab\", \"answers\": [{\"text\": \"c\", \"reference\": [-1, -1]}]}\n");
    put_text("half.jsonl",
             "{\"prompt\": \"ab\", \"chosen\": {\"text\": \"c\", \"reference\": [-1, -1]}, \"rejected\": \"d\"}\n");
    static const Refusal rows[] = {
        {"--data $W/plain.jsonl --loss grpo", "document 0 & \"logprobs\" (--rollouts", 0},
        {"--data $W/plain.jsonl --loss dpo", "document 0 & two ranks", 0},
        {"--data $W/drawn.jsonl --loss grpo", "document 0 & \"advantage\" or \"reward\"", 0},
        {"--data $W/half.jsonl --loss dpo", "document 0 & \"reference\"", 0},
        {"--data $W/alike.jsonl --loss dpo", "document 0 & two ranks", 0},
        {"--data README.md --loss dpo", "document 0 & two ranks", 0},
        {"--data README.md --beta 1", "--beta & --loss dpo", 0},
        {"--data README.md --clip-low 0.1", "--clip-low & --loss grpo", 0},
    };
    CHECK_REFUSALS("--out $W/refused --steps 1", rows);
}

// An answer that is said to be bad is not learnt as a good one unless that is asked for.
CLAIM(answers_that_are_judged_want_a_loss_by_name) {
    static const char* const lines[][2] = {
        {"{'prompt': 'ab', 'chosen': 'c', 'rejected': 'd'}", "lines have \"chosen\" & --loss nll"},
        {"{'prompt': 'ab', 'answers': [{'text': 'c', 'rank': 1}, 'd']}", "lines have \"rank\""},
        {"{'prompt': 'ab', 'answers': [{'text': 'c', 'advantage': 1}]}", "lines have \"advantage\""},
        {"{'prompt': 'ab', 'answers': ['c'], 'label': 1}\n{'prompt': 'a', 'answers': ['c'], 'reward': 1}",
         "lines have \"reward\" & --loss grpo"},
        {"{'prompt': 'ab', 'completion': 'c'}\n{'prompt': 'ab', 'completion': 'd', 'label': false}",
         "lines have \"label\""}};
    for (int i = 0; i < COUNT(lines); i++) {
        put_text("judged.jsonl", quoted(lines[i][0]));
        CHECK_REFUSED(lines[i][1], "$P --data $W/judged.jsonl --context 16 --out $W/judged --steps 1");
    }
    CHECK_SH(0,
             "$P --data $W/judged.jsonl --context 16 --out $W/judged --steps 1 --loss nll && $P --resume --out "
             "$W/judged --steps 2");
    CHECK_SH(0, "$P --data $W/plain.jsonl --context 16 --out $W/unjudged --steps 1");
}

// ---- --score

// The numbers of line `doc` of $W/scores, one behind another; returns how many.
static int read_scores(int doc, double* scores, int most) {
    static char text[1 << 14];
    read_text(path_of("scores"), text, sizeof text);
    const char* at = text;
    int n = 0;
    for (int i = 0; i < doc && at; i++) at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
    at = at ? strstr(at, "\"logprobs\": ") : NULL;
    const char* end = at ? strchr(at, '\n') : NULL;
    for (at = at ? at + 12 : end; at < end && n < most; at++)
        if (*at == '-' || (*at >= '0' && *at <= '9')) scores[n++] = strtod(at, (char**)&at);
    return n;
}

// Against the loss of the same labels; by the order of documents, not by that in which pieces are drawn.
CLAIM(scores_are_log_probabilities_in_the_order_of_documents) {
    static const char* const ways[] = {"--eval-every 1,tokens=48", "--ranks 2 --zero 3", "--ranks 2 --pp 2",
                                       "--ranks 2 --tp 2 --capacity 60", "--ranks 4 --capacity 14"};
    double scores[64], sum = 0;
    int counts[] = {14 + 3 + 1, 8 + 17 + 3, 11 + 8}, labels = 0;
    for (int w = 0; w < COUNT(ways); w++, sum = 0, labels = 0) {
        CHECK_SH(0,
                 "$P --init test/golden/gpt2/init --context 48 --batch-tokens 48 --dtype fp32 %s "
                 "--data test/golden/pairs.jsonl --score $W/scores",
                 ways[w]);
        CHECK_SAID("log-probabilities of 65 labels");
        for (int doc = 0; doc < COUNT(counts); doc++) {
            CHECK(read_scores(doc, scores, COUNT(scores)) == counts[doc]);
            for (int i = 0; i < counts[doc]; i++, labels++) sum -= scores[i];
        }
        CHECK_SH(0, "$P --init test/golden/gpt2/init --context 48 --dtype fp32 --data test/golden/pairs.jsonl --eval");
        CHECK(labels == 65);
        CHECK_CLOSE(sum / labels, strtod(output + 5, NULL), 1e-5);
    }
}

// A run may have lost the documents that it was evaluated on.
CLAIM(scores_and_evaluations_of_other_data_do_not_ask_for_a_runs_val) {
    CHECK_SH(0,
             "cp test/golden/pairs.jsonl $W/val.jsonl && $P --init test/golden/gpt2/init --data "
             "test/golden/pairs.jsonl --loss nll --val $W/val.jsonl --steps 1 --eval-every 0 --sample-every 0 "
             "--out $W/scored && "
             "rm $W/val.jsonl");
    CHECK_SH(0, "$P --init $W/scored/step-000001 --data test/golden/pairs.jsonl --score $W/scores");
    CHECK_SH(0, "$P --out $W/scored --data test/golden/pairs.jsonl --eval");
    CHECK_REFUSED("--val & val.jsonl", "$P --out $W/scored --eval");
}

CLAIM(scores_of_a_model_that_is_not_finite_are_refused) {
    CHECK_SH(0,
             "cp -r test/golden/gpt2/init $W/nan && printf '\\377\\377\\377\\377' | "
             "dd of=$W/nan/model.safetensors bs=1 conv=notrunc seek=$(($(wc -c < $W/nan/model.safetensors) - 4))");
    CHECK_REFUSED("--score: expected log-probabilities, found & nan & token & document",
                  "rm -f $W/scores; $P --init $W/nan --context 48 --data test/golden/pairs.jsonl --score $W/scores");
    CHECK(access(path_of("scores"), F_OK) != 0);
}

// The reference finds the other answer exp(shift) times less likely than the model does, or the chosen one exp(-shift)
// times: the loss is log(1 + exp(shift)).
CLAIM(a_model_prefers_what_its_reference_finds_less_likely) {
    double scores[8];
    put_text("pair.jsonl", "{\"prompt\": \"ab\", \"chosen\": \"cd\", \"rejected\": \"e\"}\n");
    CHECK_SH(0, "$P --init test/golden/gpt2/init --context 48 --data $W/pair.jsonl --score $W/scores --dtype fp32");
    CHECK(read_scores(0, scores, 8) == 5);
    for (double shift = -2000; shift <= 2000; shift += 2000) {
        const char* with = filled(
            "{\"prompt\": \"ab\", \"chosen\": {\"text\": \"cd\", \"reference\": [%.9g, %.9g, %.9g]}, \"rejected\": "
            "{\"text\": \"e\", \"reference\": [%.9g, %.9g]}}\n",
            scores[0] + fmin(0, shift), scores[1], scores[2], scores[3] - fmax(0, shift), scores[4]);
        put_text("pair.jsonl", with);
        CHECK_SH(0,
                 "$P --init test/golden/gpt2/init --context 48 --data $W/pair.jsonl --val $W/pair.jsonl --loss dpo "
                 "--beta 1 --steps 1 --out $W/own --dtype fp32 --dump-grads $W/grads");
        double loss = shift ? fmax(0, shift) : log(2);
        CHECK_CLOSE(said_loss(), loss, 1e-6 * fmax(1, loss));
    }
}

// What goes on takes the steps that would have come: losses, their options and what answers say are those of before.
CLAIM(a_run_goes_on_with_its_loss) {
    const char* options =
        "--init test/golden/gpt2/init --context 48 --batch-tokens 94 --dtype fp32 --loss dpo --beta 0.3 "
        "--data test/golden/pairs.jsonl --val test/golden/pairs.jsonl --eval-every 0 --sample-every 0 "
        "--save-every 2 --schedule constant --warmup 0 --plan static --keep 0";
    CHECK_SH(0, "$P %s --steps 4 --out $W/whole", options);
    CHECK_SH(0, "$P %s --steps 2 --out $W/cut && $P --resume --steps 4 --out $W/cut", options);
    CHECK_LOSSES("cut", "whole", 4, 0);
}

// A tree of 28 tokens in parts of at most 24: each answer's labels count what they did.
CLAIM(labels_of_a_split_tree_count_as_those_of_the_whole) {
    double loss[2];
    put_text("tree.jsonl",
             "{\"prompt\": \"abcdefgh\", \"answers\": ["
             "{\"text\": \"ijk\", \"logprobs\": [-1, -2, -3, -4], \"reward\": 1}, "
             "{\"text\": \"lmnop\", \"logprobs\": [-6, -5, -4, -3, -2, -1], \"reward\": 0, \"weight\": 0.5}, "
             "{\"text\": \"qrstuv\", \"logprobs\": [-5, -5, -5, -5, -5, -5, -5], \"reward\": 3}]}\n"
             "{\"prompt\": \"a\", \"answers\": [{\"text\": \"b\", \"logprobs\": [-4, -3], \"advantage\": 2}]}\n");
    for (int i = 0; i < 2; i++) {
        CHECK_SH(
            0,
            "$P --layers 2 --width 16 --heads 2 --context 24 --steps 1 --dtype fp32 --loss grpo --data $W/tree.jsonl "
            "--val $W/tree.jsonl --out $W/run --dump-grads $W/grads-%d --batch-tokens %d --capacity %d",
            i, 32, i ? 24 : 32);
        CHECK((strstr(output, "a step into 2") != NULL) == i);
        loss[i] = said_loss();
    }
    CHECK_CLOSE(loss[0], loss[1], 1e-6);
    CHECK_CLOSE(tensors_differ(path_of("grads-1"), path_of("grads-0"), 1), 0, tolerance());
    CHECK_SH(0, "sed 's/\"weight\": 0.5/\"rank\": 1/' $W/tree.jsonl > $W/ranked.jsonl");
    CHECK_REFUSED("a tree of & whose answers have ranks",
                  "$P --context 24 --batch-tokens 26 --data $W/ranked.jsonl --out $W/refused");
}

// Trees of 174 tokens and more: groups of few ranks, with little room, cut them inside their steps.
CLAIM(documents_of_a_step_and_its_loss_do_not_depend_on_what_ranks_hold) {
    static const struct { const char *name, *member; } losses[] = {{"grpo", "logprobs"}, {"dpo", "reference"}};
    static const char* const ways[] = {"--ranks 2 --capacity 60", "--ranks 4 --capacity 30",
                                       "--ranks 4 --tp 2 --capacity 64", "--ranks 2 --pp 2 --capacity 64"};
    const char* options =
        "--layers 2 --width 16 --heads 4 --context 64 --batch-tokens 400 --dtype fp32 --eval-every 0 --sample-every 0 "
        "--save-every 2 --threads 1 --warmup 0 --schedule constant";
    double rewards[2][4];
    for (int l = 0; l < COUNT(losses); l++) {
        FILE* f = fopen(path_of("many.jsonl"), "w");
        for (int d = 0; d < 6; d++) {
            fprintf(f, "{\"prompt\": \"prompt %d of many\", \"answers\": [", d);
            for (int a = 0; a < 3 + d % 3; a++) {
                fprintf(f, "%s{\"text\": \"answer %d to prompt number %d, and more\", \"%s\": [", a ? ", " : "", a, d,
                        losses[l].member);
                for (int t = 0; t < 38; t++) fprintf(f, "%s%g", t ? ", " : "", -4 - 0.1 * ((t + a) % 7));
                fprintf(f, "], \"%s\": %d}", l ? "rank" : "reward", l ? a : a * (d + 1) % 5);
            }
            fprintf(f, "]}\n");
        }
        fclose(f);
        sh("rm -rf $W/whole");
        CHECK_SH(0, "$P %s --data $W/many.jsonl --loss %s --steps 4 --out $W/whole", options, losses[l].name);
        for (int i = 0; i < COUNT(ways); i++) {
            sh("rm -rf $W/cut");
            CHECK_SH(0, "$P %s --data $W/many.jsonl --loss %s --steps 4 --out $W/cut %s", options, losses[l].name,
                     ways[i]);
            CHECK_SAID("cut inside a step into");
            CHECK_LOSSES("cut", "whole", 4, 1e-6);
            CHECK(log_values("cut", "reward", rewards[0], 4) == (l ? 0 : 4) &&
                  log_values("whole", "reward", rewards[1], 4) == (l ? 0 : 4));
            for (int k = 0; k < 4 && l == 0; k++) CHECK_CLOSE(rewards[0][k], rewards[1][k], 1e-6);
        }
        sh("rm -rf $W/cut");
        CHECK_SH(0, "$P %s --data $W/many.jsonl --loss %s --steps 2 --out $W/cut %s", options, losses[l].name, ways[1]);
        CHECK_SH(0, "$P --resume --steps 4 --out $W/cut --ranks 2 --capacity 60");
        CHECK_LOSSES("cut", "whole", 4, 1e-6);
    }
}

// Three steps on three documents, then two on others: from their first, with the moments of the run.
CLAIM(a_run_goes_on_with_new_documents_and_logs_their_rewards) {
    double rewards[5];
    const char* options =
        "--layers 1 --width 16 --heads 2 --context 24 --batch-tokens 24 --eval-every 0 "
        "--sample-every 0 --schedule constant --warmup 0 --loss grpo --data $W/now.jsonl --val $W/now.jsonl --out "
        "$W/new";
    for (int i = 0; i < 2; i++) {
        FILE* f = fopen(path_of("now.jsonl"), "w");
        for (int d = 0; d < 3; d++)
            fprintf(f,
                    "{\"prompt\": \"ab\", \"answers\": [{\"text\": \"c\", \"logprobs\": [-1, -1], \"reward\": %d}, "
                    "{\"text\": \"dd\", \"logprobs\": [-1, -1, -1], \"reward\": 1}]}\n",
                    i + 2);
        fclose(f);
        if (i) CHECK_REFUSED("the documents differ & --new-data", "$P --resume --steps 5 --out $W/new");
        CHECK_SH(0, "$P %s --steps %d %s", options, i ? 5 : 3, i ? "--resume --new-data" : "");
    }
    CHECK(log_values("new", "reward", rewards, 5) == 5);
    for (int i = 0; i < 5; i++) CHECK_CLOSE(rewards[i], i < 3 ? 1.5 : 2, 1e-6);
    CHECK_SH(0, "cat $W/new/step-000005/state.json");
    CHECK_SAID("\"epoch\": 1, & \"index\": 1,");
    CHECK_REFUSED("--new-data is for --resume", "$P --new-data");
    CHECK_REFUSED("--score: no complete checkpoint in", "$P --score $W/s --data test/golden/pairs.jsonl --out $W/none");
}

PROGRAM_TEST {}
