// test_data_kinds.c - data as people have it: compressed files, JSONL in directories, instructions of which only the
// completions are learnt.
#include "data/docs.h"
#include "data/sampler.h"
#include "data/unpack.h"
#include "plan/base.h"
#include "test/program.h"

#define TINY                                                                                                     \
    "--layers 1 --width 32 --heads 2 --context 64 --batch-tokens 512 --steps 3 --eval-every 0 --sample-every 0 " \
    "--save-every 0 --dtype fp32 "
#define MPIRUN "mpirun --oversubscribe --bind-to none -n %d "

static char err[ERR_BYTES];
static Tokenizer* bytes;

static const char* at(const char* name) {
    static char paths[4][1024];
    static int next;
    char* path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", work, name);
    return path;
}

static Docs* open_docs(const char* name, const Tokenizer* tokenizer) {
    const char* path = at(name);
    Docs* docs = NULL;
    return docs_open(&docs, &path, 1, tokenizer, err, sizeof err) ? NULL : docs;
}

// A hash of all that the documents are; 0: they cannot be opened.
static uint64_t content(const char* name) {
    Docs* docs = open_docs(name, bytes);
    uint64_t h = docs ? hash64(docs_content(docs) ^ docs_fingerprint(docs)) : 0;
    if (!docs) printf("    %s\n", err);
    docs_close(docs);
    return h;
}

// ---- compressed

static int has(const char* command) { return sh("command -v %s", command) == 0; }

static void compressed_text_is_the_text(void) {
    CHECK(sh("cd $W && cp %s/plan/base.h a.txt && printf '{\"text\": \"one\"}\\n{\"text\": \"two \\\\u00e4\"}\\n' > "
             "b.jsonl && gzip -k a.txt b.jsonl && cat a.txt.gz b.jsonl.gz > /dev/null",
             getenv("PWD")) == 0);
    CHECK(content("a.txt") && content("a.txt.gz") == content("a.txt"));
    CHECK(content("b.jsonl") && content("b.jsonl.gz") == content("b.jsonl"));
    CHECK(sh("cd $W && head -c 1000 a.txt | gzip > two.txt.gz && tail -c +1001 a.txt | gzip >> two.txt.gz") == 0);
    CHECK(content("two.txt.gz") == content("a.txt"));  // members behind each other
    if (!has("zstd")) SKIP("no zstd(1) here");
    CHECK(
        sh("cd $W && zstd -q a.txt b.jsonl && head -c 1000 a.txt | zstd -q > two.txt.zst && tail -c +1001 a.txt | zstd "
           "-q >> two.txt.zst") == 0);
    CHECK(content("a.txt.zst") == content("a.txt") && content("b.jsonl.zst") == content("b.jsonl"));
    CHECK(content("two.txt.zst") == content("a.txt"));
    CHECK(sh("cd $W && head -c 3000000 /dev/zero | tr '\\0' 'x' > big.txt && zstd -q big.txt && gzip -k big.txt") == 0);
    CHECK(content("big.txt.zst") == content("big.txt") && content("big.txt.gz") == content("big.txt"));
}

static void files_of_every_kind_in_a_directory_are_read_or_said(void) {
    CHECK(
        sh("cd $W && mkdir d && cp a.txt d/ && cp b.jsonl d/ && printf 'x\\ny\\n' | gzip > d/c.txt.gz && gzip -c a.txt "
           "> d/e.tar.gz && echo '{\"step\": 1}' > d/log.jsonl") == 0);
    Docs* docs = open_docs("d", bytes);
    CHECK(docs && docs_count(docs) == 5 && docs_packed(docs) == 1 && docs_skipped(docs) == 1);
    CHECK(docs && docs_plain_jsonl(docs) == 1 && docs_files(docs) == 4);
    CHECK(docs && docs_length(docs, 1) == 4 && docs_length(docs, 3) == 5);  // "one"; "x\ny\n" of c.txt.gz
    int tokens[5] = {0};
    CHECK(docs && docs_read(docs, 3, 0, 5, tokens, err, sizeof err) == 0 && tokens[0] == 256 && tokens[1] == 'x');
    docs_close(docs);
    CHECK(sh("%s " TINY "--data $W/d --out $W/run-d", program) == 0);
    CHECK(strstr(output, "1 file passed over (1 compressed") && strstr(output, "1 .jsonl without \"text\""));
}

static void damaged_files_are_named(void) {
    static char whole[4096];
    const char* const names[] = {"b.jsonl.gz", "b.jsonl.zst"};
    for (int i = 0; i < (has("zstd") ? 2 : 1); i++) {
        size_t n = read_text(at(names[i]), whole, sizeof whole);
        char name[32];
        snprintf(name, sizeof name, "cut.%s", names[i]);
        for (size_t k = 0; k < n; k++) {
            write_text(name, whole, k);
            Docs* docs = open_docs(name, bytes);
            CHECK(!docs && strstr(err, name));
            docs_close(docs);
        }
        write_text(name, "plain text", 10);
        CHECK(!open_docs(name, bytes) && strstr(err, name));
    }
    CHECK(sh("TMPDIR=$W/nowhere %s --data $W/a.txt.gz --out $W/x", program) == 1);
    CHECK(strstr(errors, "nowhere") && strchr(errors, '\n') == errors + strlen(errors) - 1);
}

// ---- instructions

// Tokens and targets of one document, byte for byte.
static void check_document(const Sampler* s, const Docs* docs, int64_t doc, const char* text, const char* learnt) {
    int n = (int)docs_length(docs, doc), tokens[512], targets[512], labels = 0;
    Piece piece = {doc, 0, n, n - 1, docs_labels(docs, doc, 1, n - 1)};
    CHECK(n == (int)strlen(text) && strlen(text) == strlen(learnt) && n < 512);
    CHECK(sampler_read(s, &piece, tokens, targets, err, sizeof err) == 0);
    for (int i = 0; i < n; i++) {
        int expected = text[i] == '^' ? 256 : text[i], next = i + 1 < n ? (text[i + 1] == '^' ? 256 : text[i + 1]) : -1;
        int is_learnt = i + 1 < n && learnt[i + 1] == 'x';
        CHECK(tokens[i] == expected);
        CHECK(targets[i] == (is_learnt ? next : -1));
        labels += is_learnt;
    }
    CHECK(piece.n_labels == labels);
}

static void only_completions_are_learnt(void) {
    const char* lines =
        "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": "
        "\"yo\"}, {\"role\": \"user\", \"content\": \"and\"}, {\"role\": \"assistant\", \"content\": "
        "\"so\"}]}\n";
    write_text("chat.jsonl", lines, strlen(lines));
    Docs* docs = open_docs("chat.jsonl", bytes);
    Sampler* s = NULL;
    CHECK(docs && docs_count(docs) == 2 && sampler_open(&s, docs, 256, 0, 1, err, sizeof err) == 0);
    if (!s) return;
    check_document(s, docs, 0, "^2+2=4^", "-----xx");
    check_document(s, docs, 1, "^user: hi\n\nassistant: yo^user: and\n\nassistant: so^",
                   "----------------------xxx----------------------xxx");
    sampler_close(s);
    docs_close(docs);
}

// Labels that pieces announce are those that they have, however documents are cut, beside text that is learnt whole.
static void every_piece_has_as_many_labels_as_it_says(void) {
    char line[512];
    FILE* file = fopen(at("many.jsonl"), "w");
    for (int i = 0; i < 40; i++) {
        int a = (int)(random_uniform(1, (uint64_t)i) * 90), b = 1 + (int)(random_uniform(2, (uint64_t)i) * 90);
        snprintf(line, sizeof line, "{\"prompt\": \"%0*d\", \"completion\": \"%0*d\"}\n", a + 1, 0, b, 1);
        fputs(line, file);
    }
    fclose(file);
    CHECK(sh("mkdir $W/both && cp $W/many.jsonl $W/a.txt $W/both/") == 0);
    Docs* docs = open_docs("both", bytes);
    for (int context = 1; context <= 64; context = 2 * context + 1) {
        Sampler* s = NULL;
        int64_t announced = 0, found = 0;
        int tokens[64], targets[64];
        CHECK(docs && sampler_open(&s, docs, context, 0, 1, err, sizeof err) == 0);
        if (!s) return;
        for (int64_t i = 0; i < sampler_pieces(s, SPLIT_TRAIN); i++) {
            Piece p = sampler_train_piece(s, (SamplerPosition){.index = i});
            int n = 0;
            CHECK(sampler_read(s, &p, tokens, targets, err, sizeof err) == 0);
            for (int k = 0; k < p.length; k++) n += targets[k] >= 0;
            CHECK(n == p.n_labels && n <= p.n_targets);
            announced += p.n_labels, found += n;
        }
        CHECK(announced == found && found > 1000);
        sampler_close(s);
    }
    docs_close(docs);
}

static void a_run_on_instructions_is_the_same_on_any_ranks(void) {
    double one[3], other[3], targets[3], tokens[3];
    CHECK(sh("%s " TINY "--data $W/many.jsonl --out $W/one", program) == 0);
    CHECK(log_values("one", "loss", one, 3) == 3 && log_values("one", "targets", targets, 3) == 3);
    CHECK(log_values("one", "tokens", tokens, 3) == 3 && targets[0] > 50 && targets[0] < 0.8 * tokens[0]);
    if (!has("mpirun")) SKIP("mpirun is not here");
    const char* ways[] = {"--cp 2 --cp-kind ring", "--plan random", "--tp 2"};
    for (int i = 0; i < COUNT(ways); i++) {
        CHECK(sh("rm -rf $W/two; " MPIRUN "%s " TINY "--data $W/many.jsonl --out $W/two %s", 2, program, ways[i]) == 0);
        CHECK(log_values("two", "loss", other, 3) == 3);
        for (int k = 0; k < 3; k++) CHECK_CLOSE(other[k], one[k], 1e-5 * one[k]);
    }
}

static void instructions_that_are_none_are_named(void) {
    static const char* const bad[] = {"{\"prompt\": \"a\", \"completion\": 5}",
                                      "{\"text\": \"a\"}",
                                      "{\"messages\": 5}",
                                      "{\"messages\": [5]}",
                                      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
                                      "{\"messages\": [{\"role\": \"assistant\", \"content\": null}]}"};
    const char* good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    for (int i = 0; i < COUNT(bad); i++) {
        char text[256];
        int n = snprintf(text, sizeof text, "%s%s\n", good, bad[i]);
        write_text("bad.jsonl", text, (size_t)n);
        CHECK(!open_docs("bad.jsonl", bytes) && strstr(err, "bad.jsonl:2: "));
    }
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    if (tokenizer_open(&bytes, NULL, err, sizeof err)) return 1;
    RUN(compressed_text_is_the_text);
    RUN(files_of_every_kind_in_a_directory_are_read_or_said);
    RUN(damaged_files_are_named);
    RUN(only_completions_are_learnt);
    RUN(every_piece_has_as_many_labels_as_it_says);
    RUN(a_run_on_instructions_is_the_same_on_any_ranks);
    RUN(instructions_that_are_none_are_named);
    tokenizer_close(bytes);
    return program_end();
}
