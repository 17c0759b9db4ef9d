// docs_encoded.c - text of a BPE vocabulary as documents, whose tokens are kept in memory, and the hash of what all
// documents hold; see docs_files.h.
#include <stdlib.h>
#include <string.h>

#include "data/docs_files.h"
#include "plan/base/base.h"

// ---- content: four lanes, for speed; in each a block is a bijection, so that no single change is lost

enum { CONTENT_BLOCK = sizeof(((ContentHash*)0)->held) };

static void hash_block(ContentHash* h, const unsigned char* block) {
    for (int i = 0; i < COUNT(h->lanes); i++) {
        uint64_t word;
        memcpy(&word, block + 8 * i, sizeof word);
        word ^= h->lanes[i];
        h->lanes[i] = (word << 29 | word >> 35) * 0x9e3779b97f4a7c15u;
    }
}

void docs_hash_content(Docs* docs, const void* bytes, size_t n) {
    ContentHash* h = &docs->more->hashing;
    const unsigned char* p = bytes;
    size_t held = h->bytes % CONTENT_BLOCK;
    h->bytes += n;
    if (held > 0) {
        size_t more = MIN(n, CONTENT_BLOCK - held);
        memcpy(h->held + held, p, more);
        p += more, n -= more;
        if (held + more < CONTENT_BLOCK) return;
        hash_block(h, h->held);
    }
    for (; n >= CONTENT_BLOCK; n -= CONTENT_BLOCK, p += CONTENT_BLOCK) hash_block(h, p);
    if (n > 0) memcpy(h->held, p, n);
}

uint64_t docs_finish_content(Docs* docs) {
    ContentHash* h = &docs->more->hashing;
    size_t held = h->bytes % CONTENT_BLOCK;
    memset(h->held + held, 0, CONTENT_BLOCK - held);
    if (held > 0) hash_block(h, h->held);
    docs->more->facts.content = hash64(docs->more->facts.content ^ h->bytes);
    for (int i = 0; i < COUNT(h->lanes); i++)
        docs->more->facts.content = hash64(docs->more->facts.content ^ h->lanes[i]);
    *h = (ContentHash){.bytes = 0};
    return docs->more->facts.content;
}

int docs_utf8_open(int open, const char* text, size_t n) {
    const unsigned char* p = (const unsigned char*)text;
    for (size_t i = 0; i < n && open >= 0; i++) {
        unsigned c = p[i];
        if (open) open = c >> 6 == 2 ? open - 1 : -1;
        else if (c >= 0x80) open = c >= 0xc2 && c < 0xe0 ? 1 : c >> 4 == 0xe ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : -1;
    }
    return open;
}

// ---- text that is encoded at opening: tokens appended to those of all documents, in 2 or 4 bytes each

enum { TELL_EVERY = 1 << 20 };  // bytes of text

int docs_append_tokens(Docs* docs, const int* tokens, size_t n, Err err) {
    if (reserve(&docs->more->encoded, &docs->more->encoded_capacity, docs->more->n_encoded, (int64_t)n,
                (size_t)docs->more->encoded_bytes, err))
        return -1;
    if (docs->more->encoded_bytes == 2) {
        uint16_t* out = (uint16_t*)docs->more->encoded + docs->more->n_encoded;
        for (size_t i = 0; i < n; i++) out[i] = (uint16_t)tokens[i];
    } else if (n > 0) {
        memcpy((int*)docs->more->encoded + docs->more->n_encoded, tokens, n * sizeof *tokens);
    }
    docs->more->n_encoded += (int64_t)n;
    return 0;
}

int docs_append_text(Docs* docs, const char* text, size_t n, Err err) {
    int* tokens = malloc(MAX(1, n * (size_t)docs->tokenizer->most) * sizeof *tokens);
    if (!tokens) return fail(err, "out of memory to encode %zu bytes of text", n);
    int status = docs_append_tokens(docs, tokens, docs->tokenizer->encode(docs->tokenizer, tokens, text, n), err);
    free(tokens);
    DocsMore* m = docs->more;
    int64_t told = m->text_bytes / TELL_EVERY;
    m->text_bytes += (int64_t)n;
    if (m->reading.tell && m->reading.total && m->text_bytes / TELL_EVERY > told)
        m->reading.tell(m->text_bytes, m->reading.total);
    return status;
}

static void tokens_at(const DocsMore* m, int64_t at, int n, int* out) {
    for (int i = 0; i < n; i++)
        out[i] = m->encoded_bytes == 2 ? ((const uint16_t*)m->encoded)[at + i] : ((const int*)m->encoded)[at + i];
}

static int read_encoded(const Docs* docs, const DocsFile* file, int64_t doc, int64_t first, int n, int* out, Err err) {
    (void)file, (void)err;
    tokens_at(docs->more, docs->list[doc].place + first, n, out);
    return 0;
}

int docs_drop_token(DocsMore* more) {
    int token;
    tokens_at(more, --more->n_encoded, 1, &token);
    return token;
}

const DocsFormat docs_encoded = {0, read_encoded, NULL};

int docs_add_hashed(Docs* docs, int64_t length, int64_t place, const void* head, size_t n, Err err) {
    if (docs_add(docs, length, place, head, n, err)) return -1;
    docs_finish_content(docs);
    return 0;
}

int docs_add_encoded(Docs* docs, int64_t first, Err err) {
    int head[DOCS_HEAD_TOKENS];
    int64_t length = docs->more->n_encoded - first;
    int n = (int)MIN(length, DOCS_HEAD_TOKENS);
    tokens_at(docs->more, first, n, head);
    return docs_add_hashed(docs, length, first, head, (size_t)n * sizeof *head, err);
}

// ---- what is said of the tokens of instructions

static int is_learnt(const DocsMore* m, int64_t at) { return at / 8 < m->n_learnt && m->learnt[at / 8] >> at % 8 & 1; }

int docs_learn(DocsMore* m, int64_t from, int64_t end, Err err) {
    int64_t more = MAX(CEIL_DIV(end, 8) - m->n_learnt, 0);
    if (reserve(&m->learnt, &m->learnt_capacity, m->n_learnt, more, 1, err)) return -1;
    if (more > 0) memset(m->learnt + m->n_learnt, 0, (size_t)more);
    m->n_learnt += more;
    for (int64_t at = from; at < end; at++) m->learnt[at / 8] |= (unsigned char)(1 << at % 8);
    return 0;
}

static int learnt(const Docs* docs, int64_t doc, int64_t first, int n, int* targets) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        int is = is_learnt(docs->more, docs->list[doc].place + first + i);
        count += is;
        if (targets && !is) targets[i] = -1;
    }
    return count;
}

const DocsFormat docs_instructions = {0, read_encoded, learnt};

int64_t docs_place(const Docs* docs, int64_t doc) {
    return docs_file_of(docs, doc)->format == &docs_instructions ? docs->list[doc].place : -1;
}

int docs_append_again(DocsMore* m, int64_t from, int64_t n, int learns, Err err) {
    int64_t size = m->encoded_bytes, at = m->n_encoded, n_said = MIN(n, m->n_terms - from);
    if (reserve(&m->encoded, &m->encoded_capacity, at, n, (size_t)size, err)) return -1;
    memcpy((char*)m->encoded + at * size, (char*)m->encoded + from * size, (size_t)(n * size));
    m->n_encoded += n;
    for (int64_t i = 0; i < n && learns; i++)
        if (is_learnt(m, from + i) && docs_learn(m, at + i, at + i + 1, err)) return -1;
    if (n_said <= 0) return 0;
    LabelTerms* terms = docs_terms_to(m, at + n_said, err);
    if (!terms) return -1;
    memcpy(terms + at, terms + from, (size_t)n_said * sizeof *terms);
    return 0;
}

// ---- documents of text files

// The last offset > 0 where text may be cut and each half encoded alone: between an ASCII letter or digit and white
// space, where every pattern ends a part, and nothing is joined by normalization. 0 when there is none.
static size_t safe_cut(const char* text, size_t n) {
    for (size_t i = n; i-- > 1;) {
        int is_space = text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
        unsigned before = (unsigned char)text[i - 1];
        if (is_space && ((before | 32) - 'a' < 26 || before - '0' < 10)) return i;
    }
    return 0;
}

int docs_add_text(Docs* docs, const DocsFile* file, int64_t begin, int64_t end, const char* text, Err err) {
    enum { BLOCK = 1 << 20 };  // bytes that are encoded at once
    char head[DOCS_HEAD_BYTES], *block = NULL;
    int64_t first = docs->more->n_encoded, capacity = 0, wanted = BLOCK, taken;
    size_t n_head = (size_t)MIN(end - begin, DOCS_HEAD_BYTES);
    int status = 0, open = 0;
    if (docs->more->encodes) status = docs_append_tokens(docs, &docs->end_of_text, 1, err);
    for (int64_t at = begin; status == 0 && at < end; at += taken) {
        int64_t n = MIN(wanted, end - at);
        const char* bytes = text ? text + (at - begin) : NULL;
        if (!text &&
            (status = reserve(&block, &capacity, 0, n, 1, err) || file_read(&file->file, at, block, (size_t)n, err)))
            break;
        if (!text) bytes = block;
        taken = docs->more->encodes && at + n < end ? (int64_t)safe_cut(bytes, (size_t)n) : n;
        if (taken == 0) wanted *= 2;
        if (at == begin && taken > 0) memcpy(head, bytes, n_head);
        docs_hash_content(docs, bytes, (size_t)taken);
        open = docs_utf8_open(open, bytes, (size_t)taken);
        if (docs->more->encodes) status = docs_append_text(docs, bytes, (size_t)taken, err);
    }
    free(block);
    docs->more->facts.not_utf8 += open != 0;
    if (status) return -1;
    if (docs->more->encodes) return docs_add_encoded(docs, first, err);
    return docs_add_hashed(docs, 1 + end - begin, begin, head, n_head, err);
}
