// test_tokenizer_golden.c - 10,000 lines of mixed Unicode are the tokens that the reference makes of them, for
// vocabularies of each kind (dev/golden_tokenizers.py made test/golden/tokenizers with Hugging Face's package).
#include "data/bpe.h"
#include "data/tokenizer_files.h"
#include "data/json.h"
#include "plan/base/base.h"
#include "plan/base/disk.h"
#include "test/test.h"

#define FOLDER "test/golden/tokenizers/"

enum { LINES = 10000, BLOCK = 100, EXAMPLES = 6, LINE_MAX = 4096, KINDS = 4 };

static const char* const kinds[KINDS] = {"gpt2", "smollm2", "llama3", "qwen3"};
static Tokenizer* tokenizers[KINDS];
static Json source, golden;  // what lines are made of; what becomes of them
static char err[ERR_BYTES];

static Json read_json(const char* path) {
    Json json;
    size_t n;
    char* text = disk_read_file(path, 1 << 20, &n, err);  // stays: the values point into it
    if (!text || json_parse(&json, text, n, err)) printf("    %s: %s\n", path, err), exit(1);
    return json;
}

// ---- lines, made as in dev/golden_tokenizers.py

static uint64_t drawn;
static uint64_t draw(uint64_t n) { return hash64(++drawn) % n; }

static const JsonValue* draw_from(const char* name) {
    const JsonValue* all = json_get(source.values, name);
    return json_at(all, (int)draw((uint64_t)all->n));
}

static char* put_character(char* p, uint32_t code) {
    if (code < 0x80) return *p = (char)code, p + 1;
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6) p[i] = (char)(0x80 | (code & 0x3f));
    p[0] = (char)(0xf00 >> n | code);
    return p + n;
}

// One line, not terminated; returns its length.
static size_t make_line(char line[LINE_MAX], int number) {
    const JsonValue* letters = json_get(source.values, "letters");
    char* p = line;
    drawn = (uint64_t)number << 12;
    for (uint64_t pieces = 1 + draw(40); pieces > 0; pieces--) {
        uint64_t kind = draw(10);
        if (kind < 3) p += json_string(draw_from("snippets"), p);
        else if (kind < 6) {
            if (draw(3)) *p++ = ' ';
            for (uint64_t n = 1 + draw(7); n > 0; n--) *p++ = letters->text[draw(letters->length)];
        } else {
            int64_t first = 0, last = 0;
            const JsonValue* range = draw_from("ranges");
            json_int64(json_at(range, 0), &first);
            json_int64(json_at(range, 1), &last);
            for (uint64_t n = 1 + draw(4); n > 0; n--)
                p = put_character(p, (uint32_t)first + (uint32_t)draw((uint64_t)(last - first + 1)));
        }
    }
    return (size_t)(p - line);
}

// ---- claims

static uint64_t golden_hash(int block, const char* name) {
    uint64_t hash = 0;
    const JsonValue* blocks = json_get(golden.values, "blocks");
    CHECK(json_uint64(json_get(json_at(blocks, block), name), &hash) == 0);
    return hash;
}

// Named by the kind, so that a failure says which; `found` of the first lines is shown in full.
static void check_kind(int kind) {
    char line[LINE_MAX];
    int tokens[3 * LINE_MAX];
    for (int number = 0; number < LINES;) {
        uint64_t hash = 0;
        for (int i = 0; i < BLOCK; i++) {
            size_t n_line = make_line(line, number++);
            size_t n = tokenizers[kind]->encode(tokenizers[kind], tokens, line, n_line);
            hash = hash_bytes(tokens, n * sizeof *tokens, hash);
        }
        CHECK(hash == golden_hash(number / BLOCK - 1, kinds[kind]));
    }
    const JsonValue* examples = json_get(golden.values, "examples");
    for (int number = 0; number < EXAMPLES; number++) {
        const JsonValue* expected = json_get(json_at(examples, number), kinds[kind]);
        size_t n = tokenizers[kind]->encode(tokenizers[kind], tokens, line, make_line(line, number));
        CHECK(expected && (size_t)expected->n == n);
        for (size_t i = 0; i < n; i++) {
            int64_t token = -1;
            json_int64(json_at(expected, (int)i), &token);
            CHECK(tokens[i] == token);
        }
    }
}

// The text that a line must come back as: form C for Qwen3, without the bytes that have no token for SmolLM2.
static size_t expected_text(const Tokenizer* t, char* out, int* work, const char* line, size_t n) {
    const char* from = line;
    size_t n_out = 0;
    if (bpe_of(t)->nfc) {
        n_out = nfc_normalize(work, line, n);
        from = (const char*)(work + 3 * n) - n_out;
        n = n_out;
        n_out = 0;
    }
    for (size_t i = 0; i < n; i++)
        if (bpe_of(t)->byte_id[(unsigned char)from[i]] >= 0) out[n_out++] = from[i];
    return n_out;
}

CLAIM(decoded_tokens_are_the_text) {
    static char line[LINE_MAX], expected[3 * LINE_MAX];
    static int tokens[3 * LINE_MAX];
    int n_other[KINDS] = {0};
    for (int number = 0; number < LINES; number++)
        for (int kind = 0; kind < KINDS; kind++) {
            const Tokenizer* t = tokenizers[kind];
            size_t n_line = make_line(line, number), n = expected_text(t, expected, tokens, line, n_line), at = 0;
            n_other[kind] += n != n_line || memcmp(line, expected, n) != 0;
            size_t n_tokens = t->encode(t, tokens, line, n_line);
            for (size_t i = 0, length; i < n_tokens; i++, at += length) {
                const char* bytes = t->decode(t, tokens[i], &length);
                if (length > n - at || memcmp(expected + at, bytes, length)) break;
            }
            CHECK(at == n);
        }
    CHECK(n_other[0] == 0 && n_other[1] > 1000 && n_other[2] == 0 && n_other[3] > 1000);
}

CLAIM(names_of_tokens_are_ordinary_text) {
    static const char* const names[] = {"<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<think>", "<|eot_id|>"};
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < COUNT(names); i++) {
            int tokens[64], n = (int)tokenizers[kind]->encode(tokenizers[kind], tokens, names[i], strlen(names[i]));
            CHECK(n >= 2);
            for (int k = 0; k < n; k++)
                CHECK(!bpe_of(tokenizers[kind])->added[tokens[k]] && tokens[k] > 4 * (kind == 1));
        }
}

static void begin(void) {
    source = read_json(FOLDER "text.json");
    golden = read_json(FOLDER "golden.json");
    for (int i = 0; i < KINDS; i++) {
        char path[256];
        snprintf(path, sizeof path, FOLDER "%s.json", kinds[i]);
        if (tokenizer_open(&tokenizers[i], path, err)) printf("    %s\n", err), exit(1);
    }
}

int main(void) {
    begin();
    RUN_AS("gpt2_tokens_are_those_of_the_reference", check_kind(0));
    RUN_AS("smollm2_tokens_are_those_of_the_reference", check_kind(1));
    RUN_AS("llama3_tokens_are_those_of_the_reference", check_kind(2));
    RUN_AS("qwen3_tokens_are_those_of_the_reference", check_kind(3));
    run_claims();
    for (int i = 0; i < KINDS; i++) tokenizer_close(tokenizers[i]);
    return test_done();
}
