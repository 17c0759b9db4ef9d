// sampler.c - see sampler.h.
//
// Each side of the split (training, validation) keeps the ids of its documents and, beside them, the number of pieces
// before each: 16 bytes a document. Piece i is found by bisection, its first token by division.
// The order is a Feistel network, a permutation of the 2^(2h) numbers of 2h bits whatever its round function is;
// applied again while the result is outside [0, n) it is a permutation of [0, n), and as 2^(2h) <= 4n that takes 4
// walks on average at most. Source: Black, Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, method 3.
#include "data/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/base/base.h"
#include "plan/base/text.h"

typedef struct Side {
    int64_t* docs;         // (n_docs) ids, ascending
    int64_t* first_piece;  // (n_docs + 1) pieces of the documents before
    int64_t n_docs;
    int64_t n_tokens;
} Side;

struct Sampler {
    const Docs* docs;
    int context;
    uint64_t seed;
    double val_fraction;
    int64_t cut;         // 0, or: documents like this one train up to this token and validate from it on
    int64_t cut_length;  // "like this one": of this length
    uint64_t cut_hash;   // and this content, so that copies of it are cut too
    Side sides[2];       // by Split
    int n_corpora;       // with weights; 0: none have
    int64_t corpus_piece[MOST_CORPORA + 1];  // the first training piece of each
    char description[256];
};

static int is_held_out(const Sampler* s, int64_t doc) {
    double place = (double)(hash64(docs_hash(s->docs, doc)) >> 11) * 0x1p-53;
    return place < s->val_fraction;
}

// The tokens [*begin, *end) of a document that lie on a side; returns their number, which may be 0.
static int64_t extent(const Sampler* s, Split split, int64_t doc, int64_t* begin, int64_t* end) {
    int64_t length = docs_length(s->docs, doc), border = length;  // training | validation
    if (s->cut) {
        if (length == s->cut_length && docs_hash(s->docs, doc) == s->cut_hash) border = s->cut;
    } else if (is_held_out(s, doc)) {
        border = 0;
    }
    *begin = split == SPLIT_TRAIN ? 0 : border;
    *end = split == SPLIT_TRAIN ? border : length;
    return *end - *begin;
}

// ---- opening

// Documents of at least two tokens count: only they have a label.
static void choose_split(Sampler* s) {
    int64_t n_train = 0, n_val = 0, longest = 0, n_docs = docs_count(s->docs);
    for (int64_t d = 0; d < n_docs; d++) {
        if (docs_length(s->docs, d) > docs_length(s->docs, longest)) longest = d;
        if (docs_length(s->docs, d) < 2) continue;
        if (is_held_out(s, d)) n_val++;
        else n_train++;
    }
    if (s->val_fraction == 0 || s->val_fraction == 1 || (n_train >= 2 && n_val >= 2)) return;

    int64_t length = docs_length(s->docs, longest);
    int64_t n = (int64_t)((double)length * s->val_fraction + 0.5);
    n = MIN(MAX(n, 2), length - 2);  // a token and its label on either side
    if (n < 2) {
        s->val_fraction = 0;
        return;
    }
    s->cut = length - n;
    s->cut_length = length;
    s->cut_hash = docs_hash(s->docs, longest);
}

static int fill_side(Sampler* s, Split split, char* err, size_t errlen) {
    Side* side = &s->sides[split];
    int64_t begin, end, n_docs = docs_count(s->docs);
    for (int64_t d = 0; d < n_docs; d++) side->n_docs += extent(s, split, d, &begin, &end) > 0;
    side->docs = malloc(MAX(1, side->n_docs) * sizeof *side->docs);
    side->first_piece = malloc((side->n_docs + 1) * sizeof *side->first_piece);
    if (!side->docs || !side->first_piece)
        return fail(err, errlen, "out of memory for the index of %lld documents", (long long)side->n_docs);
    int64_t k = 0, n_pieces = 0;
    for (int64_t d = 0; d < n_docs; d++) {
        int64_t length = extent(s, split, d, &begin, &end);
        if (length == 0) continue;
        side->docs[k] = d;
        side->first_piece[k++] = n_pieces;
        n_pieces += CEIL_DIV(length, s->context);
        side->n_tokens += length;
    }
    side->first_piece[k] = n_pieces;
    return 0;
}

// The training pieces of a corpus are neighbours, because its documents are.
static int find_corpora(Sampler* s, char* err, size_t errlen) {
    const Side* side = &s->sides[SPLIT_TRAIN];
    s->n_corpora = docs_corpora(s->docs);
    for (int c = 0, k = 0; c < s->n_corpora; c++) {
        const DocsCorpus* corpus = docs_corpus(s->docs, c);
        while (k < side->n_docs && side->docs[k] < corpus->end) k++;
        s->corpus_piece[c + 1] = side->first_piece[k];
        if (s->corpus_piece[c + 1] == s->corpus_piece[c])
            return fail(err, errlen, "the corpus %s has no text to train on", corpus->name);
    }
    return 0;
}

static void describe(Sampler* s) {
    const Side* val = &s->sides[SPLIT_VAL];
    long long n_tokens = val->n_tokens, n_docs = docs_count(s->docs);
    char documents[64];
    text_many(n_docs, "document", documents);
    if (s->cut)
        snprintf(s->description, sizeof s->description,
                 "validation on the last %lld tokens of the longest document: the corpus (%s) is too small to hold out "
                 "whole ones",
                 n_tokens, documents);
    else if (s->val_fraction == 1)
        snprintf(s->description, sizeof s->description, "validation on all %s (%lld tokens) of --val", documents,
                 n_tokens);
    else if (n_tokens == 0) snprintf(s->description, sizeof s->description, "no validation text held out");
    else
        snprintf(s->description, sizeof s->description,
                 "validation on %lld of %s (%lld tokens), chosen by the hash of their content", (long long)val->n_docs,
                 documents, n_tokens);
}

int sampler_open(Sampler** out, const Docs* docs, int context, double val_fraction, uint64_t seed, char* err,
                 size_t errlen) {
    *out = NULL;
    if (context < 1) return fail(err, errlen, "context is %d, expected at least 1", context);
    if (!(val_fraction >= 0 && val_fraction <= 1))
        return fail(err, errlen, "the held-out fraction is %g, expected 0 .. 1", val_fraction);
    if (docs_count(docs) == 0) return fail(err, errlen, "no training tokens: the corpus has no documents");
    Sampler* s = calloc(1, sizeof *s);
    if (!s) return fail(err, errlen, "out of memory for the sampler");
    s->docs = docs;
    s->context = context;
    s->seed = seed;
    s->val_fraction = val_fraction;
    choose_split(s);
    int status = fill_side(s, SPLIT_TRAIN, err, errlen);
    if (status == 0) status = fill_side(s, SPLIT_VAL, err, errlen);
    if (status == 0 && val_fraction < 1) status = find_corpora(s, err, errlen);
    if (status) {
        sampler_close(s);
        return status;
    }
    describe(s);
    *out = s;
    return 0;
}

void sampler_close(Sampler* s) {
    if (!s) return;
    for (int i = 0; i < 2; i++) {
        free(s->sides[i].docs);
        free(s->sides[i].first_piece);
    }
    free(s);
}

int64_t sampler_pieces(const Sampler* s, Split split) { return s->sides[split].first_piece[s->sides[split].n_docs]; }
int64_t sampler_tokens(const Sampler* s, Split split) { return s->sides[split].n_tokens; }
int64_t sampler_documents(const Sampler* s, Split split) { return s->sides[split].n_docs; }
const char* sampler_describe(const Sampler* s) { return s->description; }

void sampler_mark_lengths(const Sampler* s, Split split, char* seen) {
    int64_t begin, end;
    for (int64_t k = 0; k < s->sides[split].n_docs; k++) {
        int64_t length = extent(s, split, s->sides[split].docs[k], &begin, &end);
        if (length >= s->context) seen[s->context] = 1;
        if (length % s->context) seen[length % s->context] = 1;
    }
}

// ---- pieces

// A permutation of [0, n) chosen by key.
static uint64_t permute(uint64_t index, uint64_t n, uint64_t key) {
    enum { ROUNDS = 8 };  // four hide the order of large ranges; few bits need more to mix
    int half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = left ^ (hash64(key ^ round << 56 ^ right) & mask);
            left = right;
            right = mixed;
        }
        index = left << half | right;
    } while (index >= n);
    return index;
}

static Piece piece_at(const Sampler* s, Split split, int64_t i) {
    const Side* side = &s->sides[split];
    int64_t low = 0, high = side->n_docs;  // first_piece[low] <= i < first_piece[high]
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (side->first_piece[middle] <= i) low = middle;
        else high = middle;
    }
    int64_t begin, end, doc = side->docs[low];
    extent(s, split, doc, &begin, &end);
    int64_t first = begin + (i - side->first_piece[low]) * s->context;
    int length = (int)MIN(end - first, s->context);
    int n_targets = length - (first + length == end);
    return (Piece){doc, first, length, n_targets, docs_labels(s->docs, doc, first + 1, n_targets)};
}

Piece sampler_val_piece(const Sampler* s, int64_t i) {
    int64_t n = sampler_pieces(s, SPLIT_VAL);
    if (i < 0 || i >= n) broken("validation piece %lld of %lld", (long long)i, (long long)n);
    return piece_at(s, SPLIT_VAL, (int64_t)permute((uint64_t)i, (uint64_t)n, 0));
}

Piece sampler_train_piece(const Sampler* s, SamplerPosition position) {
    int64_t n = sampler_pieces(s, SPLIT_TRAIN);
    if (position.index < 0 || position.index >= n)
        broken("training piece %lld of %lld: does the position belong to this corpus?", (long long)position.index,
               (long long)n);
    uint64_t key = hash64(hash64(s->seed) ^ (uint64_t)position.epoch);
    return piece_at(s, SPLIT_TRAIN, (int64_t)permute((uint64_t)position.index, (uint64_t)n, key));
}

int64_t sampler_corpus_tokens(const Sampler* s, int corpus) {
    const Side* side = &s->sides[SPLIT_TRAIN];
    int64_t tokens = 0, begin, end;
    for (int64_t k = 0; k < side->n_docs; k++)
        if (side->docs[k] >= docs_corpus(s->docs, corpus)->first && side->docs[k] < docs_corpus(s->docs, corpus)->end)
            tokens += extent(s, SPLIT_TRAIN, side->docs[k], &begin, &end);
    return tokens;
}

// The corpus that is furthest behind its share, the first of equals.
static int next_corpus(const Sampler* s, const SamplerPosition* position) {
    double total = 0, most = -INFINITY;
    int next = 0;
    for (int c = 0; c < s->n_corpora; c++) total += (double)position->corpora[c].tokens;
    for (int c = 0; c < s->n_corpora; c++) {
        double behind = docs_corpus(s->docs, c)->share * (total + 1) - (double)position->corpora[c].tokens;
        if (behind > most) most = behind, next = c;
    }
    return next;
}

static Piece corpus_piece(const Sampler* s, const CorpusPosition* at, int corpus) {
    int64_t n = s->corpus_piece[corpus + 1] - s->corpus_piece[corpus];
    if (at->index < 0 || at->index >= n)
        broken("piece %lld of %lld of %s: does the position belong to this corpus?", (long long)at->index, (long long)n,
               docs_corpus(s->docs, corpus)->name);
    uint64_t key = hash64(hash64(s->seed ^ hash64((uint64_t)corpus + 1)) ^ (uint64_t)at->epoch);
    return piece_at(s, SPLIT_TRAIN, s->corpus_piece[corpus] + (int64_t)permute((uint64_t)at->index, (uint64_t)n, key));
}

static int draw_mixed(const Sampler* s, SamplerPosition* position, Piece* pieces, int max_pieces, int room) {
    int n = 0;
    while (n < max_pieces) {
        int c = next_corpus(s, position);
        CorpusPosition* at = &position->corpora[c];
        Piece piece = corpus_piece(s, at, c);
        if (piece.length > room) break;
        pieces[n++] = piece;
        room -= piece.length;
        at->tokens += piece.length;
        if (++at->index == s->corpus_piece[c + 1] - s->corpus_piece[c]) at->epoch++, at->index = 0;
    }
    return n;
}

int sampler_draw(const Sampler* s, SamplerPosition* position, Piece* pieces, int max_pieces, int batch_tokens) {
    if (batch_tokens < s->context || max_pieces < 1)
        broken("a batch of %d tokens in %d pieces cannot hold a piece of %d tokens", batch_tokens, max_pieces,
               s->context);
    int n = 0, room = batch_tokens;
    if (s->n_corpora) return draw_mixed(s, position, pieces, max_pieces, room);
    while (n < max_pieces) {
        Piece piece = sampler_train_piece(s, *position);
        if (piece.length > room) break;
        pieces[n++] = piece;
        room -= piece.length;
        if (++position->index == sampler_pieces(s, SPLIT_TRAIN)) position->epoch++, position->index = 0;
    }
    return n;
}

int sampler_read(const Sampler* s, const Piece* piece, int* tokens, int* targets, char* err, size_t errlen) {
    if (docs_read(s->docs, piece->doc, piece->first, piece->length, tokens, err, errlen)) return -1;
    memmove(targets, tokens + 1, (size_t)(piece->length - 1) * sizeof *targets);
    int* last = &targets[piece->length - 1];
    *last = -1;
    int n = piece->n_targets < piece->length ? piece->length - 1 : piece->length;
    if (n == piece->length && docs_read(s->docs, piece->doc, piece->first + piece->length, 1, last, err, errlen))
        return -1;
    docs_mask(s->docs, piece->doc, piece->first + 1, n, targets);
    return 0;
}
