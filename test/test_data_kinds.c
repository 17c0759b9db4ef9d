// test_data_kinds.c - data as people have it: compressed files, JSONL in directories, instructions of which only the
// completions are learnt.
#include "data/sampler_mix.h"
#include "test/corpus.h"
#include "test/program.h"

#define TINY                                                                                                     \
    "--layers 1 --width 32 --heads 2 --context 64 --batch-tokens 512 --steps 3 --eval-every 0 --sample-every 0 " \
    "--save-every 0 --dtype fp32 "

// ---- compressed

CLAIM(compressed_text_is_the_text) {
    CHECK_SH(0,
             "cd $W && cp %s/plan/base/base.h a.txt && "
             "printf '{\"text\": \"one\"}\\n{\"text\": \"two \\\\u00e4\"}\\n' > "
             "b.jsonl && gzip -k a.txt b.jsonl && cat a.txt.gz b.jsonl.gz > /dev/null",
             getenv("PWD"));
    CHECK(content("a.txt", bytes) && content("a.txt.gz", bytes) == content("a.txt", bytes));
    CHECK(content("b.jsonl", bytes) && content("b.jsonl.gz", bytes) == content("b.jsonl", bytes));
    CHECK_SH(0, "cd $W && head -c 1000 a.txt | gzip > two.txt.gz && tail -c +1001 a.txt | gzip >> two.txt.gz");
    CHECK(content("two.txt.gz", bytes) == content("a.txt", bytes));  // members behind each other
    if (sh("command -v zstd")) SKIP("no zstd(1) here");
    CHECK_SH(
        0,
        "cd $W && zstd -q a.txt b.jsonl && head -c 1000 a.txt | zstd -q > two.txt.zst && tail -c +1001 a.txt | zstd "
        "-q >> two.txt.zst");
    CHECK(content("a.txt.zst", bytes) == content("a.txt", bytes) &&
          content("b.jsonl.zst", bytes) == content("b.jsonl", bytes));
    CHECK(content("two.txt.zst", bytes) == content("a.txt", bytes));
    CHECK_SH(0, "cd $W && head -c 3000000 /dev/zero | tr '\\0' 'x' > big.txt && zstd -q big.txt && gzip -k big.txt");
    CHECK(content("big.txt.zst", bytes) == content("big.txt", bytes) &&
          content("big.txt.gz", bytes) == content("big.txt", bytes));
}

CLAIM(files_of_every_kind_in_a_directory_are_read_or_said) {
    CHECK_SH(
        0,
        "cd $W && mkdir d && cp a.txt d/ && cp b.jsonl d/ && printf 'x\\ny\\n' | gzip > d/c.txt.gz && gzip -c a.txt "
        "> d/e.tar.gz && echo '{\"step\": 1}' > d/log.jsonl");
    Docs* docs = open_one("d", bytes);
    CHECK(docs && docs->n == 5 && docs->skipped.n == 1 && strstr(docs->skipped.list[0], "e.tar.gz: compressed;"));
    CHECK(docs && docs->more->facts.plain_jsonl == 1 && docs->more->facts.files == 4);
    CHECK(docs && docs_length(docs, 1) == 4 && docs_length(docs, 3) == 5);  // "one"; "x\ny\n" of c.txt.gz
    int tokens[5] = {0};
    CHECK(docs && docs_read(docs, 3, 0, 5, tokens, err) == 0 && tokens[0] == 256 && tokens[1] == 'x');
    docs_close(docs);
    CHECK_SH(0, "$P " TINY "--data $W/d --out $W/run-d");
    CHECK_SAID("1 file passed over; 1 .jsonl without \"text\" & passed over: & e.tar.gz: compressed;");
}

CLAIM(damaged_files_are_named) {
    static char whole[4096];
    const char* const names[] = {"b.jsonl.gz", "b.jsonl.zst"};
    for (int i = 0; i < (sh("command -v zstd") == 0 ? 2 : 1); i++) {
        size_t n = read_text(path_of(names[i]), whole, sizeof whole);
        char name[32];
        snprintf(name, sizeof name, "cut.%s", names[i]);
        for (size_t k = 0; k < n; k++) {
            write_text(name, whole, k);
            Docs* docs = open_one(name, bytes);
            CHECK(!docs && strstr(err, name));
            docs_close(docs);
        }
        write_text(name, "plain text", 10);
        CHECK(!open_one(name, bytes) && strstr(err, name));
        // Of a second member, or frame: a bad byte in its magic, all but a byte of it missing, other bytes behind it.
        memcpy(whole + n, whole, n);
        for (int damage = 0; damage < 3; damage++) {
            whole[n] = (char)(whole[0] ^ (damage == 0));
            memcpy(whole + 2 * n, "garbage", 7);
            write_text(name, whole, damage == 0 ? 2 * n : damage == 1 ? n + 1 : 2 * n + 7);
            CHECK(!open_one(name, bytes) && strstr(err, name));
        }
    }
    CHECK_REFUSED("nowhere", "TMPDIR=$W/nowhere $P --data $W/a.txt.gz --out $W/x");
}

// ---- instructions

// Tokens and targets of one document, byte for byte.
static void check_document(const Sampler* s, const Docs* docs, int64_t doc, const char* text, const char* learnt) {
    int n = (int)docs_length(docs, doc), tokens[512], targets[512], labels = 0;
    Piece piece = {.doc = doc, 0, n, n - 1, docs_learnt(docs, doc, 1, n - 1, NULL)};
    CHECK(n == (int)strlen(text) && strlen(text) == strlen(learnt) && n < 512);
    CHECK(sampler_read(s, &piece, tokens, targets, err) == 0);
    for (int i = 0; i < n; i++) {
        int expected = text[i] == '^' ? 256 : text[i], next = i + 1 < n ? (text[i + 1] == '^' ? 256 : text[i + 1]) : -1;
        int is_learnt = i + 1 < n && learnt[i + 1] == 'x';
        CHECK(tokens[i] == expected);
        CHECK(targets[i] == (is_learnt ? next : -1));
        labels += is_learnt;
    }
    CHECK(piece.n_labels == labels);
}

CLAIM(only_completions_are_learnt) {
    const char* lines =
        "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": "
        "\"yo\"}, {\"role\": \"user\", \"content\": \"and\"}, {\"role\": \"assistant\", \"content\": "
        "\"so\"}]}\n"
        "{\"instruction\": \"add\", \"input\": \"1 2\", \"output\": \"3\"}\n"
        "{\"instruction\": \"hi\", \"input\": \"\", \"output\": \"yo\"}\n"
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, {\"from\": \"gpt\", \"value\": \"yo\"}]}\n";
    put_text("chat.jsonl", lines);
    Docs* docs = open_one("chat.jsonl", bytes);
    Sampler* s = NULL;
    CHECK(docs && docs->n == 5 && sampler_open(&s, docs, 256, 0, 1, err) == 0);
    if (!s) return;
    check_document(s, docs, 0, "^2+2=4^", "-----xx");
    check_document(s, docs, 1, "^user: hi\n\nassistant: yo^user: and\n\nassistant: so^",
                   "----------------------xxx----------------------xxx");
    check_document(s, docs, 2, "^user: add\n\n1 2\n\nassistant: 3^", "----------------------------xx");
    for (int i = 3; i < 5; i++) check_document(s, docs, i, "^user: hi\n\nassistant: yo^", "----------------------xxx");
    sampler_close(s);
    docs_close(docs);
}

// Labels that pieces announce are those that they have, however documents are cut, beside text that is learnt whole.
CLAIM(every_piece_has_as_many_labels_as_it_says) {
    FILE* file = fopen(path_of("many.jsonl"), "w");
    for (int i = 0; i < 40; i++) {
        int a = (int)(random_uniform(1, (uint64_t)i) * 90), b = 1 + (int)(random_uniform(2, (uint64_t)i) * 90);
        fputs(filled("{\"prompt\": \"%0*d\", \"completion\": \"%0*d\"}\n", a + 1, 0, b, 1), file);
    }
    fclose(file);
    CHECK_SH(0, "mkdir $W/both && cp $W/many.jsonl $W/a.txt $W/both/");
    Docs* docs = open_one("both", bytes);
    for (int context = 1; context <= 64; context = 2 * context + 1) {
        Sampler* s = NULL;
        int64_t announced = 0, found = 0;
        int tokens[64], targets[64];
        CHECK(docs && sampler_open(&s, docs, context, 0, 1, err) == 0);
        if (!s) return;
        for (int64_t i = 0; i < sampler_pieces(s, SPLIT_TRAIN); i++) {
            Piece p = sampler_train_piece(s, (SamplerPosition){.index = i});
            int n = 0;
            CHECK(sampler_read(s, &p, tokens, targets, err) == 0);
            for (int k = 0; k < p.length; k++) n += targets[k] >= 0;
            CHECK(n == p.n_labels && n <= p.n_targets);
            announced += p.n_labels, found += n;
        }
        CHECK(announced == found && found > 1000);
        sampler_close(s);
    }
    docs_close(docs);
}

// Long prompts: most pieces have no label. Each epoch has every label once, and no piece without one.
CLAIM(pieces_of_which_nothing_is_learnt_are_left_out) {
#define LONG TINY "--batch-tokens 64 --steps 12 --save-every 5 --data "
    FILE* file = fopen(path_of("long.jsonl"), "w");
    for (int i = 0; i < 40; i++)
        fprintf(file, "{\"prompt\": \"%0*d\", \"completion\": \"yes %d\"}\n", 150 + 7 * i, i, i);
    fclose(file);
    Docs* docs = open_one("long.jsonl", bytes);
    Sampler* s = NULL;
    CHECK(docs && sampler_open(&s, docs, 64, 0, 1, err) == 0);
    if (!s) return;
    SamplerPosition position = {0};
    Piece piece;
    int64_t labels = 0, drawn = 0, all = 0, unlearnt = 0;
    CHECK(sampler_check_labels(s, &unlearnt, err) == 0);
    for (int64_t d = 0; d < docs->n; d++) all += docs_learnt(docs, d, 1, (int)docs_length(docs, d) - 1, NULL);
    for (; labels < 3 * all && sampler_draw(s, &position, &piece, 1, 64) == 1; drawn++) {
        CHECK(piece.n_labels > 0 || piece.n_targets == 0);
        labels += piece.n_labels;
    }
    CHECK(labels == 3 * all && unlearnt > 3 * 40);
    CHECK(3 * (sampler_pieces(s, SPLIT_TRAIN) - unlearnt) - drawn <= 40);  // but for last tokens behind the last label
    sampler_close(s);
    docs_close(docs);
    CHECK_SH(0, "$P " LONG "$W/long.jsonl --out $W/l1");
    CHECK_SAID("pieces of & to train on left out: nothing of them is learnt (prompts cut off by --context 64");
    const char* first = loss_hash();
    double targets[12];
    CHECK(log_values("l1", "targets", targets, 12) == 12);
    for (int i = 0; i < 12; i++) CHECK(targets[i] > 0);
    CHECK_SH(0, "$P " LONG "$W/long.jsonl --out $W/l2 && rm -r $W/l2/step-000012 && $P --resume --out $W/l2");
    CHECK_STRING(loss_hash(), first);
    CHECK_SH(0, "$P " LONG "a=1:$W/long.jsonl b=1:README.md --out $W/l3");
    CHECK(log_values("l3", "targets", targets, 12) == 12);
    for (int i = 0; i < 12; i++) CHECK(targets[i] > 0);
    put_text("none.jsonl", "{\"prompt\": \"ab\", \"answers\": [{\"text\": \"c\", \"weight\": 0}]}\n");
    CHECK_REFUSED("nothing is learnt of these documents", "$P " LONG "$W/none.jsonl --out $W/l4");
    CHECK_REFUSED("the corpus b has no text to learn", "$P " LONG "a=1:README.md b=1:$W/none.jsonl --out $W/l4");
}

CLAIM(a_run_on_instructions_is_the_same_on_any_ranks) {
    static const char* const ways[] = {"--cp 2,kind=ring", "--plan random", "--tp 2"};
    double targets[3], tokens[3];
    CHECK_SH(0, "$P " TINY "--data $W/many.jsonl --out $W/one");
    CHECK(log_values("one", "targets", targets, 3) == 3 && log_values("one", "tokens", tokens, 3) == 3);
    CHECK(targets[0] > 50 && targets[0] < 0.8 * tokens[0]);
    if (!has_mpirun()) SKIP("mpirun is not here");
    for (int i = 0; i < COUNT(ways); i++) {
        run_on(2, "two", TINY "--data $W/many.jsonl %s", ways[i]);
        CHECK_LOSSES("two", "one", 3, 1e-5);
    }
}

// As other programs write messages: content in parts, members that are null.
CLAIM(parts_of_a_message_are_one_text) {
    const char *whole =
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"hi \\u00e4 you\"}, "
                   "{\"role\": \"assistant\", \"content\": \"yo\"}]}\n",
               *parts =
                   "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hi \\u00e4\"}, "
                   "{\"type\": \"text\", \"text\": \" you\"}], \"tool_calls\": null}, {\"role\": \"assistant\", "
                   "\"content\": [{\"type\": \"text\", \"text\": \"yo\"}], \"tool_calls\": []}]}\n";
    put_text("whole.jsonl", whole);
    put_text("parts.jsonl", parts);
    CHECK(content("whole.jsonl", bytes) && content("parts.jsonl", bytes) == content("whole.jsonl", bytes));
    static const char* const refused[][2] = {
        {"\"content\": [{\"type\": \"image_url\", \"image_url\": {}}]", "a part of type \"image_url\", expected text"},
        {"\"content\": [\"a\"]", "expected a part of a message as {\"type\""},
        {"\"content\": null, \"tool_calls\": [{\"id\": 1}]", "a message has \"tool_calls\""},
        {"\"content\": \"a\", \"function_call\": {\"name\": \"f\"}", "a message has \"function_call\""}};
    for (int i = 0; i < COUNT(refused); i++) {
        put_text("parts.jsonl", filled("{\"messages\": [{\"role\": \"assistant\", %s}]}\n", refused[i][0]));
        CHECK(!open_one("parts.jsonl", bytes) && strstr(err, "parts.jsonl:1: ") && strstr(err, refused[i][1]));
    }
}

// scripts/parquet_to_shards.py with a package in place of pyarrow, whose files are JSON.
CLAIM(columns_of_parquet_become_lines_that_are_read) {
    if (sh("command -v python3 > /dev/null")) SKIP("python3 is not here");
    make_directory("pq"), make_directory("pq/pyarrow");
    put_text("pq/pyarrow/__init__.py", "import pyarrow.lib");
    put_text("pq/pyarrow/lib.py", "class ArrowException(Exception): pass");
    put_text("pq/pyarrow/parquet.py",
             "import json\n"
             "class Column(list):\n    to_pylist = list.copy\n"
             "class Schema:\n    def __init__(self, name): self.names = list(json.load(open(name)))\n"
             "read_schema = Schema\n"
             "def read_table(name, columns): return {columns[0]: Column(json.load(open(name))[columns[0]])}\n");
    put_text("pq/a.parquet",
             "{\"text\": [\"one\", \"\"], \"n\": [1], \"messages\": [[{\"role\": \"user\", \"content\": "
             "\"hi\", \"tool_calls\": null}, {\"role\": \"assistant\", \"content\": \"yo\"}]]}");
#define SHARDS "PYTHONPATH=$W/pq python3 scripts/parquet_to_shards.py "
    CHECK_SH(0, SHARDS "$W/pq/t $W/pq/a.parquet && " SHARDS "$W/pq/m $W/pq/a.parquet --column messages");
    CHECK_DOCUMENTS(open_one("pq/t/a.jsonl", bytes), "|one");
    CHECK_DOCUMENTS(open_one("pq/m/a.jsonl", bytes), "|user: hi\n\nassistant: yo|");
    CHECK(sh(SHARDS "$W/pq/n $W/pq/a.parquet --column n") == 1 && strstr(output, "expected text or messages"));
    CHECK(sh("ls $W/pq/n/*") != 0);
}

static int read_second_line(const void* line, size_t n) {
    put_text("bad.jsonl", filled("{\"prompt\": \"a\", \"completion\": \"b\"}\n%.*s\n", (int)n, (const char*)line));
    return open_one("bad.jsonl", bytes) ? 0 : -1;
}

CLAIM(instructions_that_are_none_are_named) {
    static const BadText bad[] = {{"{'prompt': 'a', 'completion': 5}", "bad.jsonl:2: "},
                                  {"{'text': 'a'}", "bad.jsonl:2: "},
                                  {"{'messages': 5}", "bad.jsonl:2: "},
                                  {"{'messages': [5]}", "bad.jsonl:2: "},
                                  {"{'messages': [{'role': 'user', 'content': 'a'}]}", "bad.jsonl:2: "},
                                  {"{'messages': [{'role': 'assistant', 'content': null}]}", "bad.jsonl:2: "}};
    CHECK_BAD_TEXTS(read_second_line, err, bad);
}

// What people have that is none of the forms: said with what was found and what to do.
CLAIM(other_json_is_named_and_its_text_chosen) {
    static const struct {
        const char *name, *text, *words;
    } refused[] = {{"u.jsonl", "{\"title\": \"a\", \"body\": \"b c\"}", "u.jsonl:1: no member \"text\", expected "},
                   {"u.jsonl", "{\"title\": \"a\", \"body\": \"b c\"}",
                    "found the members \"title\", \"body\"; try --text-key NAME"},
                   {"u.jsonl", "[\"a\"]", "found a JSON array"},
                   {"u.jsonl", "5", "found the members of none"},
                   {"a.json", " [\n {\"instruction\": \"a\", \"output\": \"b\"}]",
                    "a.json: expected text or JSONL, found a JSON array"},
                   {"a.json", "[{}]", "jq -c '.[]' "},
                   {"o.json", " {\n\"a\": 1}", "found JSON; try: jq -c . "},
                   {"s.json", "[\"one\", \"two\"]", "jq -c '.[] | {text: .}' "}};
    for (int i = 0; i < COUNT(refused); i++) {
        put_text(refused[i].name, refused[i].text);
        CHECK(!open_one(refused[i].name, bytes) && strstr(err, refused[i].words));
    }
    CHECK_SH(0,
             "mkdir $W/array && cp $W/a.json $W/a.txt $W/array && printf 'a<|endoftext|>b' > $W/array/t && "
             "echo '{\"title\": \"a\", \"body\": \"b c\", \"messages\": []}' > $W/u.jsonl");
    CHECK_SH(0, "$P " TINY "--data $W/array $W/u.jsonl --text-key body --eval-every 3,tokens=2 --out $W/chosen");
    CHECK_SAID(
        " to validate (at most 2 tokens a time); 1 file passed over & "
        "text files divided at <|endoftext|> into 2 documents; --document-separator none keeps them whole\n & "
        "passed over: & a.json: expected text or JSONL, found a JSON array; try: jq");
    CHECK(strstr(output, " in 4 documents") || strstr(output, " in 5 documents"));
}

// ---- corpora with weights

// Shares of tokens are exact to one piece at any moment; each corpus is visited as often as any other of its pieces.
CLAIM(each_corpus_has_its_share_of_the_tokens_at_any_time) {
    char paths[3][1100];
    snprintf(paths[0], sizeof paths[0], "code=3:%s", path_of("a.txt"));
    snprintf(paths[1], sizeof paths[1], "books=6:%s", path_of("many.jsonl"));
    snprintf(paths[2], sizeof paths[2], "rest=1:%s", path_of("b.jsonl"));
    const char* list[] = {paths[0], paths[1], paths[2]};
    const double shares[] = {0.3, 0.6, 0.1};
    Docs* docs = NULL;
    Sampler* s = NULL;
    if (docs_open_as(&docs, list, 3, bytes, (DocsReading){0}, err) || sampler_open(&s, docs, 32, 0, 3, err))
        die("%s", err);
    CHECK(docs->more->n_corpora == 3 && docs_corpus(docs, 1)->end == docs_corpus(docs, 2)->first);
    SamplerPosition position = {0};
    double tokens[3] = {0}, total = 0;
    int visits[4096] = {0};
    for (int step = 0; step < 400; step++) {
        Piece pieces[256];
        SamplerPosition again = position;
        int n = sampler_draw(s, &position, pieces, 256, 256), sum = 0;
        for (int i = 0; i < n; i++) {
            int c = 0;
            while (pieces[i].doc >= docs_corpus(docs, c)->end) c++;
            tokens[c] += pieces[i].length, total += pieces[i].length, sum += pieces[i].length;
            if (c == 1) visits[pieces[i].doc]++;
            for (int k = 0; k < 3; k++) CHECK(fabs(tokens[k] - shares[k] * total) <= 2 * 32);
        }
        CHECK(sum <= 256 && n > 0);
        if (step % 50 == 7) {  // what is drawn depends on nothing but the position
            Piece others[256];
            CHECK(sampler_draw(s, &again, others, 256, 256) == n && !memcmp(&again, &position, sizeof again));
            for (int i = 0; i < n; i++) CHECK(others[i].doc == pieces[i].doc && others[i].first == pieces[i].first);
        }
    }
    const DocsCorpus* books = docs_corpus(docs, 1);
    double least = 1e9, most = 0;
    for (int64_t d = books->first; d < books->end; d++) {
        double pieces = 0;  // of those that are drawn
        for (int64_t at = 0, n; at < docs_length(docs, d); at += n) {
            n = MIN(docs_length(docs, d) - at, 32);
            int last = at + n == docs_length(docs, d);
            pieces += n == last || docs_learnt(docs, d, at + 1, (int)n - last, NULL) > 0;
        }
        least = fmin(least, visits[d] / pieces), most = fmax(most, visits[d] / pieces);
    }
    CHECK(least > 2 && most - least <= 1);  // whole epochs, and a part of one
    sampler_close(s);
    docs_close(docs);
}

CLAIM(a_mixed_run_resumes_to_the_same_bits_and_tells_shares) {
#define MIX TINY "--steps 8 --save-every 3 --data code=0.3:$W/a.txt books=0.7:$W/many.jsonl "
    CHECK_SH(0, "$P " MIX "--out $W/m1");
    CHECK_SAID("30.0 % of each step from code & 70.0 % of each step from books");
    const char* first = loss_hash();
    CHECK_SH(0, "$P " MIX "--out $W/m2 > /dev/null && rm -r $W/m2/step-000008 && $P --resume --out $W/m2");
    CHECK_STRING(loss_hash(), first);
    if (!has_mpirun()) return;
    CHECK_SH(0, ON_RANKS "$P " MIX "--out $W/m3", 2);
    CHECK_LOSSES("m3", "m1", 8, 1e-5);
}

CLAIM(weights_that_make_no_sense_are_named) {
    static const Refusal rows[] = {{"a=0.5:$W/a.txt $W/b.jsonl", "a weight for every path", 0},
                                   {"$W/a.txt a=0.5:$W/b.jsonl", "a weight for every path", 0},
                                   {"a=0:$W/a.txt", "a weight above 0", 0},
                                   {"a=1:$W/a.txt b=1:$W/b.jsonl a=1:$W/many.jsonl", "behind each other", 0},
                                   {"a=1:$W/a.txt a=2:$W/b.jsonl", "had the weight 1 before", 0},
                                   {"a=1:$W/nowhere", "nowhere", 0}};
    CHECK_REFUSALS(TINY "--out $W/refused --data", rows);
}

PROGRAM_TEST {
    if (tokenizer_open(&bytes, NULL, err)) exit(1);
}
