// sampler.c - see sampler.h.
//
// The order is computed, not shuffled: a shuffle holds n indices and is drawn again from the start, while here a run
// resumes at any (epoch, index), on any ranks, from these two numbers alone. It is a Feistel network, a permutation of
// the 2^(2h) numbers of 2h bits whatever its round function is. While
// the result lies outside [0, n), the network is applied again: this permutes [0, n). As 2^(2h) <= 4n, it takes at most
// 4 applications on average. Source: Black, Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, method 3.
#include "data/sampler.h"

#include <stdlib.h>

#include "data/docs_formats.h"

// ---- opening

static int is_held_out(const Sampler* s, int64_t doc) {
    double place = (double)(hash64(s->docs->list[doc].hash) >> 11) * 0x1p-53;
    return place < s->val_fraction;
}

static double tree_squares(const Sampler* s, int64_t doc) {
    return s->docs->formats ? s->docs->formats->squares(s->docs, doc) : 0;
}

int64_t sampler_extent(const Sampler* s, Split split, int64_t doc, int64_t* begin, int64_t* end) {
    int64_t length = docs_length(s->docs, doc), border = length;  // training | validation
    if (!s->cut && is_held_out(s, doc)) border = 0;
    if (s->cut && length == s->cut_length && s->docs->list[doc].hash == s->cut_hash) border = s->cut;
    *begin = split == SPLIT_TRAIN ? 0 : border;
    *end = split == SPLIT_TRAIN ? border : length;
    return *end - *begin;
}

// Documents of at least two tokens count: only they have a label.
static void choose_split(Sampler* s) {
    int64_t n_train = 0, n_val = 0, longest = 0;
    for (int64_t d = 0; d < s->docs->n; d++) {
        if (docs_length(s->docs, d) > docs_length(s->docs, longest)) longest = d;
        if (docs_length(s->docs, d) < 2) continue;
        *(is_held_out(s, d) ? &n_val : &n_train) += 1;
    }
    if (s->val_fraction == 0 || s->val_fraction == 1 || (n_train >= 2 && n_val >= 2)) return;
    int is_tree = tree_squares(s, longest) > 0;  // no part of it stands alone; where all are held out, none is
    int64_t length = docs_length(s->docs, longest), n = (int64_t)((double)length * s->val_fraction + 0.5);
    n = MIN(MAX(n, 2), length - 2);  // a token and its label on either side
    if (is_tree ? n_train == 0 : n < 2) s->val_fraction = 0;
    else if (!is_tree) s->cut = length - n, s->cut_length = length, s->cut_hash = s->docs->list[longest].hash;
}

static int fill_side(Sampler* s, Split split, Err err) {
    Side* side = &s->sides[split];
    int64_t begin, end, capacity = 0, n_pieces = 0;
    for (int64_t d = 0; d < s->docs->n; d++) {
        if (reserve(&side->list, &capacity, side->n, 2, sizeof *side->list, err)) return -1;
        int64_t length = sampler_extent(s, split, d, &begin, &end);
        if (length == 0) continue;
        side->list[side->n++] = (SideDocument){d, n_pieces};
        n_pieces += tree_squares(s, d) > 0 ? 1 : CEIL_DIV(length, s->context);
        side->n_tokens += length;
    }
    side->list[side->n] = (SideDocument){s->docs->n, n_pieces};
    return 0;
}

int sampler_open(Sampler** out, const Docs* docs, int context, double val_fraction, uint64_t seed, Err err) {
    *out = NULL;
    if (context < 1) return fail(err, "context is %d, expected at least 1", context);
    if (!(val_fraction >= 0 && val_fraction <= 1))
        return fail(err, "the held-out fraction is %g, expected 0 .. 1", val_fraction);
    if (docs->n == 0) return fail(err, "no training tokens: the corpus has no documents");
    Sampler* s = malloc(sizeof *s);
    if (!s) return fail(err, "out of memory for the sampler");
    *s = (Sampler){.docs = docs, .context = context, .seed = seed, .val_fraction = val_fraction};
    choose_split(s);
    int status = fill_side(s, SPLIT_TRAIN, err) || fill_side(s, SPLIT_VAL, err) ? -1 : 0;
    if (status == 0 && val_fraction < 1 && docs->formats) status = docs->formats->check(s, err);
    if (status) sampler_close(s);
    else *out = s;
    return status;
}

void sampler_close(Sampler* s) {
    for (int i = 0; s && i < 2; i++) free(s->sides[i].list);
    free(s);
}

int64_t sampler_pieces(const Sampler* s, Split split) { return s->sides[split].list[s->sides[split].n].first_piece; }

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

Piece sampler_piece(const Sampler* s, Split split, int64_t first, int64_t n, int64_t index, uint64_t key) {
    if (index < 0 || index >= n)
        broken("piece %lld of %lld: does the position belong to this corpus?", (long long)index, (long long)n);
    const SideDocument* list = s->sides[split].list;
    int64_t i = first + (int64_t)permute((uint64_t)index, (uint64_t)n, key), begin, end;
    const SideDocument* d = &list[last_at_most(&list->first_piece, sizeof *list, s->sides[split].n, i)];
    sampler_extent(s, split, d->doc, &begin, &end);
    begin += (i - d->first_piece) * s->context;
    double s2 = tree_squares(s, d->doc);
    int length = (int)(s2 > 0 ? end - begin : MIN(end - begin, s->context));
    int targets = length - (begin + length == end), labels = docs_learnt(s->docs, d->doc, begin + 1, targets, NULL);
    double weight = s->docs->formats ? s->docs->formats->weight(s->docs, d->doc, begin + 1, targets) : labels;
    return (Piece){.doc = d->doc, begin, length, targets, labels, weight, s2 > 0 ? s2 : (double)length * length};
}

Piece sampler_val_piece(const Sampler* s, int64_t i) {
    return sampler_piece(s, SPLIT_VAL, 0, sampler_pieces(s, SPLIT_VAL), i, 0);
}

Piece sampler_train_piece(const Sampler* s, SamplerPosition at) {
    uint64_t key = hash64(hash64(s->seed) ^ (uint64_t)at.epoch);
    return sampler_piece(s, SPLIT_TRAIN, 0, sampler_pieces(s, SPLIT_TRAIN), at.index, key);
}

Piece sampler_next(const Sampler* s, SamplerPosition* at) {
    Piece piece;
    do {
        piece = sampler_train_piece(s, *at);
        if (++at->index == sampler_pieces(s, SPLIT_TRAIN)) at->epoch++, at->index = 0;
    } while (piece.weight == 0 && piece.n_targets > 0);
    return piece;
}

int sampler_draw(const Sampler* s, SamplerPosition* position, Piece* pieces, int max_pieces, int batch_tokens) {
    if (batch_tokens < s->context || max_pieces < 1)
        broken("a batch of %d tokens in %d pieces cannot hold a piece of %d tokens", batch_tokens, max_pieces,
               s->context);
    int n = 0, room = batch_tokens;
    while (n < max_pieces) {
        SamplerPosition after = *position;
        pieces[n] = (s->docs->formats ? s->docs->formats->next : sampler_next)(s, &after);
        if (pieces[n].length > room) break;
        room -= pieces[n++].length;
        *position = after;
    }
    return n;
}

int sampler_draw_step(const Sampler* s, SamplerPosition* position, Piece* pieces, int max_pieces, int batch_tokens) {
    for (;;) {
        int n = sampler_draw(s, position, pieces, max_pieces, batch_tokens);
        for (int i = 0; i < n; i++)
            if (pieces[i].weight > 0) return n;
    }
}

int sampler_read(const Sampler* s, const Piece* piece, int* tokens, int* targets, Err err) {
    if (docs_read(s->docs, piece->doc, piece->first, piece->length, tokens, err)) return -1;
    memmove(targets, tokens + 1, (size_t)(piece->length - 1) * sizeof *targets);
    int n = piece->length - (piece->n_targets < piece->length), *last = &targets[piece->length - 1];
    *last = -1;
    if (n == piece->length && docs_read(s->docs, piece->doc, piece->first + n, 1, last, err)) return -1;
    docs_learnt(s->docs, piece->doc, piece->first + 1, n, targets);
    for (int t = 0; t < n && piece->n_labels == 0; t++) targets[t] = -1;  // another part of the tree learns them
    return 0;
}
