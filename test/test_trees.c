// test_trees.c - documents that are trees: what is made of a line of JSONL, and the second law, that a step on trees
// has the loss and the gradients of a step on the same paths written out.
//
//   build/release/test/test_trees build/release/train_checked
#include "data/docs_files.h"
#include "data/sampler_cut.h"
#include "data/sampler_join.h"
#include "data/tokenizer_files.h"
#include "plan/base/fields.h"
#include "test/program.h"
#include "test/tensors.h"

#define SMALL "--layers 2 --width 32 --heads 4 --context 192 --steps 1 --eval-every 0 --sample-every 0 --save-every 0 "

// ---- lines

static Docs* open_lines(const char* lines, Err err) {
    static Tokenizer* bytes;
    Docs* docs = NULL;
    const char* path = path_of("lines.jsonl");
    CHECK(bytes || tokenizer_open(&bytes, NULL, err) == 0);
    write_file(path, lines, strlen(lines));
    docs_open_as(&docs, &path, 1, bytes, (DocsReading){0}, err);
    return docs;
}

enum { EOT = 256 };

// Of one document: its tokens, ends of text as ".", and behind it what is learnt, "-" where nothing is.
static const char* told(const Docs* docs) {
    static char text[600];
    int n = (int)docs_length(docs, 0), tokens[200], targets[200], positions[200];
    Sampler* s = NULL;
    char err[ERR_BYTES];
    CHECK(sampler_open(&s, docs, 190, 0, 1, err) == 0 && sampler_pieces(s, SPLIT_TRAIN) == 1);
    CHECK(docs_check_trees(docs, 40, n, err) == 0);
    Piece piece = sampler_train_piece(s, (SamplerPosition){0});
    CHECK(piece.length == n && sampler_read(s, &piece, tokens, targets, err) == 0);
    docs_tree_positions(docs, 0, 0, n, positions);
    int at = 0, labels = 0;
    for (int row = 0; row < 3; row++, text[at++] = ' ')
        for (int t = 0; t < n; t++) {
            int id = row == 1 ? targets[t] : tokens[t];
            labels += row == 1 && id >= 0;
            text[at++] = row == 2 ? (char)('0' + positions[t] % 10) : id == EOT ? '.' : id < 0 ? '-' : (char)id;
        }
    text[at - 1] = 0;
    CHECK(labels == piece.n_labels);
    sampler_close(s);
    return text;
}

CLAIM(a_prompt_is_there_once_and_each_answer_begins_with_a_copy_of_its_last_token) {
    char err[ERR_BYTES];
    Docs* docs = open_lines("{\"prompt\": \"abc\", \"answers\": [\"de\", \"f\"]}\n", err);
    const DocsSegment* list;
    CHECK(docs && docs->n == 1 && docs_segments(docs, 0, &list) == 3);
    CHECK_STRING(told(docs), ".abcde.cf. ---de.-f.- 0123456345");
    CHECK(list[1].first == 3 && list[1].parent == 0 && list[1].position == 3 && list[2].first == 7);
    docs_close(docs);
}

// A token with several next ones is learnt once, and before each of them there is one of its own.
CLAIM(branches_of_any_depth_are_learnt_once) {
    char err[ERR_BYTES];
    Docs* docs = open_lines(
        "{\"text\": \"ab\", \"children\": [{\"text\": \"cd\"}, {\"text\": \"e\", \"children\": [{\"text\": \"f\"}, "
        "{\"text\": \"g\"}]}]}\n",
        err);
    const DocsSegment* list;
    CHECK(docs && docs_segments(docs, 0, &list) == 5);
    CHECK_STRING(told(docs), ".abcdbefeg abcd-ef-g- 0123423434");
    CHECK(list[3].parent == 2 && list[4].parent == 2 && list[4].position == 3);
    docs_close(docs);
}

// The conversation goes on behind what was said; what might have been said ends there.
CLAIM(turns_with_alternatives_branch_behind_their_header_and_all_of_them_are_learnt) {
    static const struct {
        int first, parent, position;
    } expected[] = {{0, -1, 0}, {17, 0, 17}, {36, 1, 36}, {39, 1, 36}, {42, 1, 36}, {44, 0, 17}};
    char err[ERR_BYTES];
    const DocsSegment* list = NULL;
    Docs* docs = open_lines(
        "{\"messages\": [{\"role\": \"u\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", "
        "\"alternatives\": [\"c\"]}, {\"from\": \"u\", \"value\": \"d\", \"alternatives\": null}, "
        "{\"from\": \"gpt\", \"value\": \"e\", \"alternatives\": [\"f\", \"\"]}]}\n",
        err);
    CHECK(docs && docs->n == 1 && docs_segments(docs, 0, &list) == COUNT(expected));
    for (int i = 0; list && i < COUNT(expected); i++)
        CHECK(list[i].first == expected[i].first && list[i].parent == expected[i].parent &&
              list[i].position == expected[i].position);
    if (docs)
        CHECK_STRING(told(docs),
                     ".u: a\n\nassistant: b.u: d\n\nassistant: e. f. . c. "
                     "-----------------b.-----------------e.-f.-.-c.- "
                     "01234567890123456789012345678901234567867867789");
    docs_close(docs);
}

#define ALTERNATIVES(role, list) \
    "{\"messages\": [{\"role\": \"" role "\", \"content\": \"a\", \"alternatives\": " list "}]}"

CLAIM(lines_that_are_no_trees_are_refused_by_name) {
    static const char* const rows[][2] = {
        {"{\"prompt\": \"abc\", \"answers\": []}", "\"answers\" as an array that is not empty"},
        {"{\"prompt\": \"abc\", \"answers\": \"d\"}", "\"answers\" as an array"},
        {"{\"prompt\": \"\", \"answers\": [\"d\"]}", "a text without tokens"},
        {"{\"prompt\": \"abc\", \"answers\": [1]}", "an answer as a string"},
        {"{\"text\": \"a\", \"children\": [{\"text\": \"\"}]}", "has no tokens"},
        {"{\"text\": \"a\", \"children\": [{}]}", "\"text\" of a branch as a string"},
        {ALTERNATIVES("assistant", "[]"), "lines.jsonl:1: & \"alternatives\" as an array that is not empty"},
        {ALTERNATIVES("assistant", "\"b\""), "\"alternatives\" as an array"},
        {ALTERNATIVES("assistant", "[1]"), "an alternative as a string"},
        {ALTERNATIVES("user", "[\"b\"]"), "\"alternatives\" of a message that is not an assistant's"},
        {"{\"text\": \"a\"}\n{\"text\": \"b\", \"children\": [{\"text\": \"c\"}]}",
         "lines.jsonl:2: & files of their own"},
    };
    for (int i = 0; i < COUNT(rows); i++) {
        char err[ERR_BYTES] = "";
        Docs* docs = open_lines(rows[i][0], err);
        CHECK(!docs && has_words(err, rows[i][1]));
        docs_close(docs);
    }
    char err[ERR_BYTES] = "";
    static char deep[8000];
    for (int below = 63; below <= 64; below++) {
        size_t n = 0;
        for (int i = 0; i < below; i++) text_append(deep, sizeof deep, &n, "{\"text\": \"a\", \"children\": [");
        text_append(deep, sizeof deep, &n, "{\"text\": \"a\"}");
        for (int i = 0; i < below; i++) text_append(deep, sizeof deep, &n, "]}");
        Docs* docs = open_lines(deep, err);
        CHECK(below < 64 ? docs != NULL : !docs && has_words(err, "64"));
        docs_close(docs);
    }
    int n = snprintf(deep, sizeof deep, "{\"messages\": [");
    for (int i = 0; i < 65; i++)
        n += snprintf(deep + n, sizeof deep - (size_t)n,
                      "%s{\"role\": \"assistant\", \"content\": \"a\", \"alternatives\": [\"b\"]}", i ? ", " : "");
    snprintf(deep + n, sizeof deep - (size_t)n, "]}");
    CHECK(!open_lines(deep, err) && has_words(err, "more than 64 turns"));
}

// ---- the second law

static int tree_tokens, flat_tokens;

static int draw(uint64_t seed, uint64_t at, int low, int high) {
    return low + (int)(hash64(seed ^ hash64(at)) % (uint64_t)(high - low + 1));
}

static void put_words(FILE* f, uint64_t seed, int n) {
    for (int i = 0; i < n; i++) fputc("abcdefgh ijk"[draw(seed, (uint64_t)i, 0, 11)], f);
}

// tree.jsonl, and its paths written out in flat.jsonl.
static void write_corpus(uint64_t seed) {
    FILE *tree = fopen(path_of("tree.jsonl"), "w"), *flat = fopen(path_of("flat.jsonl"), "w");
    tree_tokens = flat_tokens = 0;
    for (uint64_t d = 0; d < 6; d++) {
        uint64_t key = hash64(seed + d);
        int prompt = draw(key, 1, 1, 90), answers = draw(key, 2, 1, 8);
        fprintf(tree, "{\"prompt\": \"");
        put_words(tree, key, prompt);
        tree_tokens += prompt;  // with the end-of-text token, without its last
        for (int a = 0; a < answers; a++) {
            int n = draw(key, 10 + (uint64_t)a, 0, 60);
            fprintf(tree, "%s", a ? "\", \"" : "\", \"answers\": [\"");
            put_words(tree, key + (uint64_t)a, n);
            fprintf(flat, "{\"prompt\": \"");
            put_words(flat, key, prompt);
            fprintf(flat, "\", \"completion\": \"");
            put_words(flat, key + (uint64_t)a, n);
            fprintf(flat, "\"}\n");
            tree_tokens += n + 2, flat_tokens += 1 + prompt + n + 1;
        }
        fprintf(tree, "\"]}\n");
    }
    CHECK(!fclose(tree) && !fclose(flat));
}

static double loss_of(const char* file, int ranks, int tokens, const char* options) {
    const char* launcher = ranks > 1 ? filled(ON_RANKS, ranks) : "";
    CHECK_SH(0,
             "%s $P " SMALL
             "--data $W/%s.jsonl --val $W/%s.jsonl --batch-tokens %d --out $W/run-%s --dump-grads "
             "$W/%s.grads %s",
             launcher, file, file, tokens, file, file, options);
    const char* loss = strstr(output, "\nloss ");
    return loss ? strtod(loss + 6, NULL) : NAN;
}

static void check_trees(uint64_t seed, const char* options, const char* always, double tolerance) {
    write_corpus(seed);
    double flat = loss_of("flat", 1, flat_tokens, always);
    double tree = loss_of("tree", 1, tree_tokens, filled("%s %s", always, options));
    CHECK_CLOSE(tree, flat, tolerance * flat);
    CHECK_CLOSE(tensors_differ(path_of("tree.grads"), path_of("flat.grads"), 1), 0, tolerance);
}

CLAIM(trees_are_their_paths_written_out_on_one_rank) {
    static const char* const ways[] = {"", "--capacity 500", "--recompute block", "--cpu-isa reference"};
    for (int i = 0; i < COUNT(ways); i++) check_trees((uint64_t)i, ways[i], "--dtype fp32", 1e-5);
    check_trees(9, "", "--dtype fp32 --arch llama --arch kv-heads=2", 1e-5);
    check_trees(9, "", "--dtype bf16", 0.05);
}

// ---- documents that begin alike (--shared-prefix)

static int alike_tokens;

// alike.jsonl: instructions below three beginnings, each with three middles, of which none or all may be long enough.
static void write_alike(uint64_t seed) {
    FILE* f = fopen(path_of("alike.jsonl"), "w");
    alike_tokens = 0;
    for (uint64_t d = 0; d < 27; d++) {
        uint64_t begin = hash64(seed + d / 9), middle = hash64(begin ^ d / 3), own = hash64(middle + d);
        int n[] = {draw(begin, 1, 30, 130), draw(middle, 1, 0, 100), draw(own, 1, 1, 9), draw(own, 2, 0, 30)};
        fprintf(f, "{\"prompt\": \"");
        put_words(f, begin, n[0]), put_words(f, middle, n[1]), put_words(f, d % 2 ? own : middle + 9, n[2]);
        fprintf(f, "\", \"completion\": \"");
        put_words(f, own + 1, n[3]);
        fprintf(f, "\"}\n");
        alike_tokens += n[0] + n[1] + n[2] + n[3] + 2;
    }
    CHECK(!fclose(f));
}

// Part k of a tree, and what is above it, are the beginning of this document; nothing of what others share is learnt.
static void check_path(const Docs* docs, const Piece* parts, int k, int64_t doc) {
    int own[320], found[320];
    char err[ERR_BYTES];
    for (int end = (int)docs_length(docs, doc), is_leaf = 1; k >= 0; k = parts[k].parent, is_leaf = 0) {
        const Piece* p = &parts[k];
        int first = (int)p->first, n = p->length;
        CHECK(first + n == end && (is_leaf || n >= JOIN_LEAST) && p->n_targets == n - is_leaf);
        CHECK(docs_read(docs, doc, first, n, own, err) == 0 && docs_read(docs, p->doc, first, n, found, err) == 0);
        CHECK(!memcmp(own, found, (size_t)n * sizeof *own) && (p->parent < 0) == (first == 0));
        CHECK(is_leaf ? p->n_labels == docs_learnt(docs, doc, first + 1, n - 1, NULL)
                      : docs_learnt(docs, doc, first + 1, n, NULL) == 0);
        end = first;
    }
}

// Every document stands in one tree, or alone; parts stand depth first.
static int64_t check_pieces(const Docs* docs, const Piece* pieces, int n, int64_t most) {
    int seen[27] = {0}, all = 0;
    int64_t tokens = 0;
    for (int i = 0; i < n; tokens += pieces[i++].length) {
        const Piece *tree = &pieces[i], *parts = pieces + tree->part;
        Piece sum = {.n_labels = 0};
        if (!tree->n_parts) seen[tree->doc]++;
        for (int k = 0; k < tree->n_parts; k++) {
            int up = k - 1, is_leaf = parts[k].n_targets < parts[k].length;
            while (k && up >= 0 && up != parts[k].parent) up = parts[up].parent;
            CHECK(up == parts[k].parent && (k == 0 || up >= 0));
            sum.length += parts[k].length, sum.n_labels += parts[k].n_labels;
            if (!is_leaf) continue;
            seen[parts[k].doc]++;
            check_path(docs, parts, k, parts[k].doc);
        }
        CHECK(!tree->n_parts || (sum.length == tree->length && sum.n_labels == tree->n_labels && sum.length <= most));
    }
    for (int d = 0; d < docs->n; d++) all += seen[d] == 1;
    CHECK(all == docs->n);
    return tokens;
}

// Joins the documents of a file; returns the number of pieces then.
static int join_file(Docs** docs, const char* file, int context, int64_t most, Piece* pieces) {
    static Tokenizer* bytes;
    static int scratch[8000];
    const char* path = path_of(file);
    char err[ERR_BYTES];
    Arena arena = {0};
    Sampler* s = NULL;
    CHECK(bytes || tokenizer_open(&bytes, NULL, err) == 0);
    CHECK(docs_open_as(docs, &path, 1, bytes, (DocsReading){0}, err) == 0);
    CHECK(sampler_open(&s, *docs, context, 0, 1, err) == 0);
    int n = (int)sampler_pieces(s, SPLIT_TRAIN);
    for (int i = 0; i < n; i++) pieces[i] = sampler_train_piece(s, (SamplerPosition){.index = i});
    n = sampler_join(s, pieces, n, most, scratch, &arena, err);
    sampler_close(s);
    arena_free(&arena);
    return n;
}

CLAIM(documents_that_begin_alike_are_joined_where_nothing_is_learnt) {
    static Piece pieces[8000];
    int joined = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        Docs* docs = NULL;
        write_alike(seed);
        int64_t most = seed % 4 ? draw(seed, 1, 200, 900) : 8000;
        int n = join_file(&docs, "alike.jsonl", 320, most, pieces);
        int64_t tokens = check_pieces(docs, pieces, n, most);
        joined += tokens < alike_tokens;
        docs_close(docs);
    }
    CHECK(joined >= 25);
}

static const char* letters(char c, int n) {
    static char text[4][200];
    static int i;
    memset(text[++i % 4], c, (size_t)n);
    text[i % 4][n] = 0;
    return text[i % 4];
}

CLAIM(joined_are_64_tokens_that_whole_documents_begin_with_and_not_what_is_learnt) {
    static const struct {
        int a, b, context, n, parts, tokens;                   // of the prompts "a..x", "a..y", "a..b..x" and "a..b..y"
    } rows[] = {{70, 70, 320, 1, 6, 71 + 2 * 3 + 70 + 2 * 3},  // a root, and below it a segment with b
                {70, 40, 320, 1, 5, 71 + 2 * 3 + 2 * (40 + 3)},  // too few b's for one
                {62, 64, 320, 3, 3, 2 * (63 + 3) + 127 + 6},     // and too few a's: those with b alone
                {63, 0, 320, 1, 5, 64 + 4 * 3},                  // with the token that documents begin with just enough
                {70, 70, 72, 8, 0, 2 * 74 + 2 * 144}};           // what is cut is not joined
    static Piece pieces[1000];
    for (int i = 0; i < COUNT(rows); i++) {
        Docs* docs = NULL;
        FILE* f = fopen(path_of("alike.jsonl"), "w");
        for (int k = 0; k < 4; k++)
            fprintf(f, "{\"prompt\": \"%s%s%c\", \"completion\": \"%c\"}\n", letters('a', rows[i].a),
                    letters('b', k / 2 * rows[i].b), "xy"[k % 2], "xy"[k % 2]);
        CHECK(!fclose(f));
        int n = join_file(&docs, "alike.jsonl", rows[i].context, 1000, pieces), tokens = 0, parts = 0;
        for (int k = 0; k < n; k++) tokens += pieces[k].length, parts += pieces[k].n_parts;
        CHECK(n == rows[i].n && parts == rows[i].parts && tokens == rows[i].tokens);
        docs_close(docs);
    }
}

static void check_joined(uint64_t seed, int ranks, const char* options, const char* always) {
    write_alike(seed);
    double apart = loss_of("alike", 1, alike_tokens, filled("--context 320 %s", always));
    CHECK_SH(0, "mv $W/alike.grads $W/apart.grads");
    double joined =
        loss_of("alike", ranks, alike_tokens, filled("--context 320 --shared-prefix auto %s %s", always, options));
    CHECK_CLOSE(joined, apart, 1e-5 * apart);
    CHECK_CLOSE(tensors_differ(path_of("alike.grads"), path_of("apart.grads"), 1), 0, 1e-5);
}

CLAIM(joined_documents_are_the_documents_written_out_on_one_rank) {
    static const char* const ways[] = {"", "--capacity 400", "--recompute block"};
    for (int i = 0; i < COUNT(ways); i++) check_joined((uint64_t)i, 1, ways[i], "--dtype fp32");
    check_joined(9, 1, "", "--dtype fp32 --arch llama --arch kv-heads=2");
}

CLAIM(joined_documents_are_the_documents_written_out_on_ranks) {
    static const struct {
        int ranks;
        const char* options;
    } ways[] = {{2, ""},
                {4, ""},
                {1, "--ranks 2"},  // forked: one of them draws
                {1, "--ranks 4 --capacity 330"},
                {4, "--plan static --cp 4"},
                {4, "--plan fixed"},
                {4, "--plan adaptive --capacity 330 --zero 3"},
                {4, "--tp 2 --cp 2 --plan static"},
                {2, "--pp 2 --capacity 400"},
                {4, "--strategies 'tp2+2xtp1' --capacity 500"}};
    if (!has_mpirun()) SKIP("mpirun is not here");
    for (int i = 0; i < COUNT(ways); i++)
        check_joined(20 + (uint64_t)i, ways[i].ranks, ways[i].options, "--dtype fp32");
}

CLAIM(a_run_says_what_was_joined_or_why_nothing_is) {
    double tokens[2], drawn[2];
    write_alike(1);
#define ALIKE "$P " SMALL "--context 320 --steps 2 --batch-tokens 2000 --val $W/alike.jsonl --shared-prefix "
    CHECK_SH(0, ALIKE "auto --data $W/alike.jsonl --out $W/joined");
    CHECK(has_words(output, "documents that begin alike: & tokens for & less"));
    CHECK(log_values("joined", "tokens", tokens, 2) == 2 && log_values("joined", "drawn", drawn, 2) == 2);
    CHECK(tokens[0] < 0.9 * drawn[0] && tokens[1] < 0.9 * drawn[1] && drawn[1] <= 2000);
    CHECK_REFUSED("were joined to some (--shared-prefix)", "$S what-if $W/joined --machine a100-7b");
    CHECK_SH(0, "sed 's/\"prompt\"/\"text\"/' $W/alike.jsonl > $W/learnt.jsonl");
    CHECK_SH(0, ALIKE "none --data $W/learnt.jsonl --out $W/apart");
    CHECK(log_values("apart", "tokens", tokens, 2) == 2 && log_values("apart", "drawn", drawn, 2) == 0);
    CHECK_SH(0, ALIKE "auto --data $W/learnt.jsonl --out $W/whole");
    CHECK(has_words(output, "no documents are joined & every token of these is learnt"));
    CHECK_LOSSES("whole", "apart", 2, 0);
}

CLAIM(a_run_and_a_plan_say_what_trees_spare) {
    write_corpus(5);
    const char* words =
        filled("6 trees of & segments: %d tokens, their paths written out %d,", tree_tokens, flat_tokens);
    CHECK_SH(0, "$P " SMALL "--data $W/tree.jsonl --val $W/tree.jsonl --out $W/spared --batch-tokens %d", tree_tokens);
    CHECK_SAID(words);
    CHECK_SH(0, "$P " SMALL "--data $W/tree.jsonl --val $W/tree.jsonl --explain --batch-tokens %d", tree_tokens);
    CHECK_SAID(words);
}

CLAIM(what_cannot_hold_a_tree_is_refused) {
    write_corpus(3);
#define TREES "$P " SMALL "--data $W/tree.jsonl --val $W/tree.jsonl --out $W/refused "
    CHECK_REFUSED("a path of this tree & --context 24", TREES "--batch-tokens 4096 --context 24");
    CHECK_REFUSED("--capacity 40 cannot hold one document", TREES "--batch-tokens 4096 --capacity 40");
    CHECK_REFUSED("--cp kind=ring", TREES "--batch-tokens 4096 --cp kind=ring");
    CHECK_REFUSED("--plan zeppelin with trees & --plan flex", TREES "--batch-tokens 4096 --ranks 2 --plan zeppelin");
    CHECK_REFUSED("a tree of & --cp 4", TREES "--batch-tokens 4096 --ranks 4 --heads 2 --cp 4");
    CHECK_REFUSED("a group of ranks holds", TREES "--batch-tokens 4096 --ranks 4 --heads 1 --capacity 60");
    write_alike(3);
    CHECK_REFUSED("--cp kind=ring", ALIKE "auto --data $W/alike.jsonl --out $W/refused --cp kind=ring");
}

// ---- of any shape

// Text that branches, and its paths: the first as text, of the others what is before the branch as a prompt. Tokens are
// bytes.
typedef struct Shape {
    const char* name;
    int depth, least, most;  // children of a node that is not at the end
    int longest;             // segment
    int is_comb;             // only the last child goes on
} Shape;

typedef struct Writing {
    FILE *tree, *texts, *rest;
    uint64_t seed, drawn;
    const Shape* shape;
    char path[16384];
    int learnt, is_first, is_branched, tokens, flat_tokens, longest, segments;
} Writing;

static void put_leaf(Writing* x, int length) {
    x->flat_tokens += length + 1, x->longest = MAX(x->longest, length + 1);
    if (x->is_first) fprintf(x->texts, "{\"text\": \"%.*s\"}\n", length, x->path);
    else fprintf(x->rest, "{\"prompt\": \"%.*s\", \"answers\": [{\"tokens\": [", x->learnt, x->path);
    for (int i = x->learnt; i < length && !x->is_first; i++)
        fprintf(x->rest, "%s%d", i > x->learnt ? ", " : "", (unsigned char)x->path[i]);
    if (!x->is_first) fprintf(x->rest, "]}]}\n");
    x->is_branched |= !x->is_first, x->is_first = 0;
}

static void put_shape(Writing* x, int begin, int depth, int goes_on) {
    const Shape* shape = x->shape;
    int n = draw(x->seed, ++x->drawn, depth ? 1 : 2, shape->longest), end = begin + n,
        children = depth < shape->depth && goes_on ? draw(x->seed, ++x->drawn, shape->least, shape->most) : 0;
    for (int i = begin; i < end; i++) x->path[i] = (char)('a' + draw(x->seed, ++x->drawn, 0, 15));
    fprintf(x->tree, "{\"text\": \"%.*s\"", n, x->path + begin);
    x->tokens += n + 1, x->segments++;
    if (children) x->tokens--;  // its last token is there in its children only
    if (!children) put_leaf(x, end);
    for (int i = 0; i < children; i++) {
        fprintf(x->tree, i ? ", " : ", \"children\": [");
        put_shape(x, end, depth + 1, !shape->is_comb || i == children - 1);
        x->learnt = end;
    }
    fprintf(x->tree, children ? "]}" : "}");
}

static Writing write_shapes(const Shape* shape, uint64_t seed) {
    static Writing x;
    x = (Writing){.seed = hash64(seed), .shape = shape};
    x.tree = fopen(path_of("tree.jsonl"), "w"), x.texts = fopen(path_of("texts.jsonl"), "w");
    x.rest = fopen(path_of("rest.jsonl"), "w");
    for (int d = 0; d < 3; d++) {
        x.is_first = 1, x.learnt = 0;
        put_shape(&x, 0, 0, 1);
        fprintf(x.tree, "\n");
    }
    CHECK(!fclose(x.tree) && !fclose(x.texts) && !fclose(x.rest));
    return x;
}

CLAIM(trees_of_any_shape_are_their_paths_on_up_to_8_ranks) {
    static const Shape shapes[] = {{"chains", 5, 1, 1, 400, 0}, {"stars", 1, 40, 64, 60, 0},
                                   {"combs", 5, 2, 4, 120, 1},  {"bushes", 3, 1, 4, 80, 0},
                                   {"pairs", 6, 1, 2, 30, 0},   {"long ones", 2, 2, 2, 2000, 0}};
    static const char* const ways[] = {
        "",          "--ranks 2 --zero 2", "--ranks 3 --plan adaptive", "--ranks 4 --plan static --cp 4",
        "--ranks 5", "--ranks 6 --tp 2",   "--ranks 8 --pp 2 --zero 3", "--ranks 8 --plan flexsp --recompute block"};
    for (int i = 0; i < COUNT(shapes) * COUNT(ways); i++) {
        const Shape* shape = &shapes[i % COUNT(shapes)];
        const char *way = ways[(i + i / COUNT(shapes)) % COUNT(ways)], *bf16 = i % 8 == 7 ? "bf16" : "fp32";
        Writing x = write_shapes(shape, (uint64_t)i);
        double tolerance = i % 8 == 7 ? 0.05 : 1e-5, loss[2];
        for (int k = 0; k < 2; k++) {
            CHECK_SH(0,
                     "$P " SMALL
                     "--context %d --batch-tokens %d --capacity %d --dtype %s --val $W/texts.jsonl --data "
                     "$W/%s --out $W/run-%d --dump-grads $W/grads-%d %s",
                     x.longest + 1, k ? x.tokens : x.flat_tokens, MAX(x.longest + 1, k ? x.tokens : x.flat_tokens),
                     bf16,
                     k               ? "tree.jsonl"
                     : x.is_branched ? "texts.jsonl $W/rest.jsonl"
                                     : "texts.jsonl",
                     k, k, k ? way : "");
            const char* said = strstr(output, "\nloss ");
            loss[k] = said ? strtod(said + 6, NULL) : NAN;
        }
        if (i < COUNT(shapes))
            printf("    %s: %d segments, %d tokens for %d\n", shape->name, x.segments, x.tokens, x.flat_tokens);
        CHECK_CLOSE(loss[1], loss[0], tolerance * loss[0]);
        CHECK_CLOSE(tensors_differ(path_of("grads-1"), path_of("grads-0"), 1), 0, tolerance);
    }
}

// ---- trees that are split

// Of each document what is learnt, "-" where nothing is, and "|" between documents.
static const char* learnt(const Docs* docs) {
    static char text[600];
    int at = 0, tokens[200], targets[200];
    char err[ERR_BYTES];
    Sampler* s = NULL;
    CHECK(sampler_open(&s, docs, 190, 0, 1, err) == 0 && sampler_pieces(s, SPLIT_TRAIN) == docs->n);
    for (int64_t d = 0; d < docs->n; d++, text[at++] = '|') {
        int n = (int)docs_length(docs, d);
        Piece piece = {.doc = d, 0, n, n - 1, n - 1};
        CHECK(sampler_read(s, &piece, tokens, targets, err) == 0);
        for (int t = 0; t < n; t++) text[at++] = targets[t] == EOT ? '.' : targets[t] < 0 ? '-' : (char)targets[t];
    }
    text[at - 1] = 0;
    sampler_close(s);
    return text;
}

CLAIM(a_tree_is_split_at_its_branches_and_what_is_computed_again_is_not_learnt_again) {
    static const struct {
        const char *line, *learnt;
        int most, trees, parts, again;
    } rows[] = {
        {"{\"prompt\": \"abc\", \"answers\": [\"de\", \"f\", \"ghi\", \"k\"]}", "---de.-f.-ghi.-k.-", 20, 0, 0, 0},
        {"{\"prompt\": \"abc\", \"answers\": [\"de\", \"f\", \"ghi\", \"k\"]}", "---de.-f.-|---ghi.-k.-", 12, 1, 2, 3},
        {"{\"prompt\": \"abc\", \"answers\": [\"de\", \"f\", \"ghi\", \"k\"]}", "---de.-|---f.-k.-|---ghi.-", 9, 1, 3,
         6},
        {"{\"text\": \"ab\", \"children\": [{\"text\": \"cd\"}, {\"text\": \"e\", \"children\": [{\"text\": \"f\"}, "
         "{\"text\": \"g\"}]}]}",
         "abcd-|--ef-g-", 7, 1, 2, 2},
    };
    for (int i = 0; i < COUNT(rows); i++) {
        char err[ERR_BYTES];
        DocsSplit told;
        Docs* docs = open_lines(rows[i].line, err);
        CHECK(docs && docs_split_trees(docs, rows[i].most, &told, err) == 0);
        CHECK(told.trees == rows[i].trees && told.parts == rows[i].parts && told.again == rows[i].again);
        CHECK_STRING(learnt(docs), rows[i].learnt);
        for (int64_t d = 1; d < docs->n; d++) CHECK(docs->list[d].hash == docs->list[0].hash);  // all train, or none
        CHECK(docs_check_trees(docs, 10, 6, err) == 0 ||
              has_words(err, "a path of this tree & a group of ranks holds 6"));
        docs_close(docs);
    }
}

typedef struct Branches {
    uint64_t seed, drawn;
    int depth, paths;
} Branches;

static void put_tree(FILE* f, Branches* b) {
    int n = draw(b->seed, ++b->drawn, 1, 20),
        children = b->depth < 3 && b->paths < 6 ? draw(b->seed, ++b->drawn, 0, 3) : 0;
    fprintf(f, "{\"text\": \"");
    put_words(f, b->seed + b->drawn, n);
    fprintf(f, "\"");
    b->depth++;
    b->paths += MAX(children - 1, 0);
    for (int i = 0; i < children; i++) fprintf(f, i ? ", " : ", \"children\": ["), put_tree(f, b);
    b->depth--;
    fprintf(f, children ? "]}" : "}");
}

// The fewest tokens of parts of at most `most`, over all ways to divide the paths; each part is a set of segments.
typedef struct Ways {
    const DocsSegment* list;
    int n, n_paths, leaves[64], length[64];
    int64_t most, least;
} Ways;

static void divide(Ways* x, int path, uint64_t* parts, int n_parts) {
    int64_t tokens = 0;
    for (int p = 0; p < n_parts; p++) {
        int64_t of_part = 0;
        for (int i = 0; i < x->n; i++) of_part += (parts[p] >> i & 1) * (uint64_t)x->length[i];
        if (of_part > x->most) return;
        tokens += of_part;
    }
    if (path == x->n_paths) x->least = MIN(x->least, tokens);
    if (path == x->n_paths || tokens >= x->least) return;
    uint64_t own = 0;
    for (int i = x->leaves[path]; i >= 0; i = x->list[i].parent) own |= 1ull << i;
    for (int p = 0; p <= n_parts; p++) {
        uint64_t before = p < n_parts ? parts[p] : 0;
        parts[p] = before | own;
        divide(x, path + 1, parts, MAX(n_parts, p + 1));
        parts[p] = before;
    }
}

CLAIM(random_trees_are_split_into_parts_that_fit_with_each_label_once_and_hardly_more_tokens_than_the_fewest) {
    int split = 0, fewest = 0;
    double worst = 1, sum = 0;
    FOR_SEEDS(seed, 0, 1500) {
        char err[ERR_BYTES];
        DocsSplit told;
        Branches b = {.seed = hash64(seed)};
        FILE* f = fopen(path_of("lines.jsonl"), "w");
        fprintf(f, "{\"text\": \"a\", \"children\": [");
        put_tree(f, &b), fprintf(f, ", "), put_tree(f, &b), fprintf(f, "]}\n");
        fclose(f);
        Docs *docs = NULL, *whole = NULL;
        const char* path = path_of("lines.jsonl");
        CHECK(!docs_open_as(&docs, &path, 1, &byte_tokenizer, (DocsReading){0}, err));
        CHECK(!docs_open_as(&whole, &path, 1, &byte_tokenizer, (DocsReading){0}, err));
        Ways x = {.least = INT64_MAX};
        x.n = docs_segments(whole, 0, &x.list);
        int longest = 0, tokens = (int)docs_length(whole, 0);
        for (int i = 0; i < x.n; i++) {
            x.length[i] = (int)((i + 1 < x.n ? x.list[i + 1].first : tokens) - x.list[i].first);
            longest = MAX(longest, x.list[i].position + x.length[i]);
            if (i + 1 == x.n || x.list[i + 1].parent != i) x.leaves[x.n_paths++] = i;
        }
        x.most = draw(seed, 1, longest, tokens);
        CHECK(docs_split_trees(docs, x.most, &told, err) == 0);
        int labels = 0;
        for (int64_t d = 0; d < docs->n; d++) {
            CHECK(docs_length(docs, d) <= x.most);
            labels += docs_learnt(docs, d, 1, (int)docs_length(docs, d) - 1, NULL);
        }
        CHECK(labels == docs_learnt(whole, 0, 1, tokens - 1, NULL));
        CHECK(docs_tokens(docs) == tokens + told.again);
        if (told.trees && x.n_paths <= 7) {
            uint64_t parts[64];
            divide(&x, 0, parts, 0);
            double ratio = (double)docs_tokens(docs) / (double)x.least;
            CHECK(ratio >= 1);
            worst = fmax(worst, ratio), sum += ratio, split++, fewest += ratio == 1;
        }
        docs_close(docs), docs_close(whole);
    }
    printf("    %d trees split, %d with the fewest tokens, mean %.4f of them, worst %.4f\n", split, fewest, sum / split,
           worst);
    CHECK(split > 500 && fewest > split * 9 / 10 && sum / split < 1.005);
}

// A step's pieces of random trees, of which some are cut: what they learn and count is what the trees do, once.
CLAIM(trees_that_are_cut_in_a_step_learn_each_label_once_at_its_place_on_its_path) {
    enum { ROOM = 4000 };
    static Piece pieces[ROOM];
    static int tokens[ROOM], targets[ROOM], times[ROOM];
    int cut = 0;
    FOR_SEEDS(seed, 0, 300) {
        char err[ERR_BYTES];
        Branches b = {.seed = hash64(seed)};
        Arena arena = {0};
        Docs* docs = NULL;
        Sampler* s = NULL;
        FILE* f = fopen(path_of("lines.jsonl"), "w");
        for (int d = 0; d < 3; d++) {
            fprintf(f, "{\"text\": \"a\", \"children\": ["), put_tree(f, &b), fprintf(f, ", ");
            put_tree(f, &b), fprintf(f, "]}\n");
        }
        fclose(f);
        const char* path = path_of("lines.jsonl");
        CHECK(!docs_open_as(&docs, &path, 1, &byte_tokenizer, (DocsReading){0}, err));
        CHECK(sampler_open(&s, docs, 190, 0, 1, err) == 0);
        int n = (int)sampler_pieces(s, SPLIT_TRAIN), labels = 0, most = draw(seed, 2, 82, 120);
        for (int i = 0; i < n; i++) {
            pieces[i] = sampler_train_piece(s, (SamplerPosition){.index = i});
            labels += pieces[i].n_labels;
        }
        int now = sampler_cut(s, pieces, n, most, ROOM, &arena, err);
        CHECK(now >= n);
        cut += now > n;
        memset(times, 0, sizeof times);
        for (int i = 0, rest = 0; i < now; i++) {
            int sum = 0, length = 0;
            CHECK(pieces[i].length <= most && (rest == 0 || pieces[i].rest == rest - 1));
            rest = pieces[i].rest;
            for (int k = 0; k < piece_stretches(&pieces[i]); k++) {
                const Piece* p = piece_stretch(pieces, &pieces[i], k);
                CHECK(sampler_read(s, p, tokens, targets, err) == 0);
                for (int t = 0; t < p->length; t++)
                    if (targets[t] >= 0) sum++, times[docs->list[p->doc].start + p->first + t]++;
                length += p->length;
            }
            CHECK(sum == pieces[i].n_labels && length == pieces[i].length);
            labels -= sum;
        }
        for (int t = 0; t < ROOM; t++) CHECK(times[t] <= 1);
        CHECK(labels == 0);
        sampler_close(s), docs_close(docs), arena_free(&arena);
    }
    CHECK(cut > 100);
}

// The corpus of the second law, and one of trees of any depth, cut for groups that hold `most`, against whole ones.
static void check_split(uint64_t seed, int ranks, int most, const char* always, const char* options) {
    char err[ERR_BYTES];
    DocsSplit told = {0, 0, 0};
    Docs* docs = NULL;
    FILE* f;
    const char* path = path_of("tree.jsonl");
    write_corpus(seed);
    if (seed % 2 && (f = fopen(path, "w"))) {
        for (uint64_t d = 0; d < 6; d++) {
            Branches b = {.seed = hash64(seed + d)};
            fprintf(f, "{\"text\": \"abc\", \"children\": ["), put_tree(f, &b), fprintf(f, ", ");
            put_tree(f, &b), fprintf(f, "]}\n");
        }
        fclose(f);
    }
    CHECK(!docs_open_as(&docs, &path, 1, &byte_tokenizer, (DocsReading){0}, err));
    double whole = loss_of("tree", 1, (int)docs_tokens(docs), always), tolerance = 1e-5;
    CHECK(rename(path_of("tree.grads"), path_of("whole.grads")) == 0);
    CHECK(docs_cut_factor(docs, most, &told, err) > 1 && told.parts > told.trees);
    double split = loss_of("tree", ranks, (int)docs_tokens(docs), filled("%s %s", always, options));
    CHECK(has_words(output, filled("more than the %d tokens & into %d", most, (int)told.parts)));
    CHECK_CLOSE(split, whole, tolerance * whole);
    CHECK_CLOSE(tensors_differ(path_of("tree.grads"), path_of("whole.grads"), 1), 0, tolerance);
    docs_close(docs);
}

CLAIM(split_trees_have_the_loss_and_the_gradients_of_whole_ones) {
    check_split(40, 1, 160, "--dtype fp32 --context 160", "--capacity 160");
    check_split(41, 1, 96, "--dtype fp32 --context 96", "--capacity 96");
    check_split(43, 1, 96, "--dtype fp32 --context 96 --arch llama", "--capacity 96");
    if (!has_mpirun()) SKIP("mpirun is not here");
    check_split(44, 4, 200, "--dtype fp32", "--capacity 50");
    check_split(45, 3, 100, "--dtype fp32", "--capacity 50");
    check_split(46, 2, 192, "--dtype fp32", "--capacity 192 --pp 2");
}

// ---- what trees take

// Long ones, whose pairs of tokens count. Virtual ranks compute nothing: tokens are cheap.
static void write_long(const char* path) {
    FILE* f = fopen(path, "w");
    for (uint64_t d = 0; d < 24; d++) {
        fprintf(f, "{\"prompt\": \"");
        put_words(f, d, draw(d, 1, 500, 8000));
        for (int a = 0, answers = draw(d, 2, 1, 8); a < answers; a++) {
            fprintf(f, "%s", a ? "\", \"" : "\", \"answers\": [\"");
            put_words(f, d, draw(d, 10 + (uint64_t)a, 10, 5000));
        }
        fprintf(f, "\"]}\n");
    }
    CHECK(!fclose(f));
}

CLAIM(trees_take_what_is_predicted_whatever_plans_them) {
    static const char* const ways[] = {
        "",         "--plan adaptive", "--plan static --cp 2", "--plan megatron", "--plan flexsp",
        "--zero 3", "--tp 2",          "--capacity 16384"};
    write_long(path_of("long.jsonl"));
    for (int i = 0; i < COUNT(ways); i++) {
        CHECK_SH(0,
                 "$P --layers 4 --width 64 --heads 8 --context 16384 --steps 2 --eval-every 0 --sample-every 0 "
                 "--save-every 0 --device virtual --ranks 16 --machine h200-8b --batch-tokens 250000 "
                 "--data $W/long.jsonl --val $W/long.jsonl --out $W/long-%d %s",
                 i, ways[i]);
        CHECK_SH(0, "grep '\"predicted_ms\"' $W/long-%d/log.jsonl", i);
        const char *predicted = strstr(output, "\"predicted_ms\": "), *measured = strstr(output, "\"measured_ms\": ");
        CHECK(predicted && measured);
        double p = predicted ? strtod(predicted + 16, NULL) : 0, m = measured ? strtod(measured + 15, NULL) : 1;
        printf("    predicted %.1f ms, took %.1f: %s\n", p, m, ways[i]);
        CHECK_CLOSE(p, m, 0.03 * m);
    }
}

PROGRAM_TEST {}
