// bpe.c - byte pair encoding: inside a part of text, of all adjacent pairs of tokens that can merge the one of least
// rank does, the leftmost among equals, until none is left. Sources: Sennrich, Haddow, Birch 2016;
// github.com/openai/gpt-2, src/encoder.py; ids as ranks as in OpenAI's tiktoken.
//
// A vocabulary is turned into a table of pairs once: (left, right) -> (rank, id). Encoding then knows only integers.
// Parts of text are mostly words: those are merged in place by looking at every pair. Long parts keep the pairs in a
// heap, so that a megabyte of spaces takes n log n steps.
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 48 };  // bytes up to which looking at every pair is the faster way

static uint32_t power_of_two_above(uint64_t n) {
    uint64_t p = 4;
    while (p < n) p *= 2;
    return (uint32_t)MIN(p, 1u << 31);
}

// ---- tokens by their bytes

// Returns the slot of the token that has these bytes, or the empty slot where it would be.
static size_t token_slot(const Bpe* t, const char* bytes, size_t n) {
    size_t slot = hash_bytes(bytes, n, 0) & t->index.mask;
    for (; t->index.slots[slot] >= 0; slot = (slot + 1) & t->index.mask) {
        int id = t->index.slots[slot];
        if (token_length(t, id) == n && memcmp(t->bytes + t->begin[id], bytes, n) == 0) break;
    }
    return slot;
}

int bpe_index_tokens(Bpe* t, Err err) {
    uint32_t n = power_of_two_above(2 * (uint64_t)t->base.vocab);
    t->index = (TokenIndex){malloc(n * sizeof(int)), n - 1};
    if (!t->index.slots) return fail(err, "out of memory for a vocabulary of %d tokens", t->base.vocab);
    memset(t->index.slots, 0xff, n * sizeof(int));
    for (int id = 0; id < t->base.vocab; id++) {
        if (id == t->base.end_of_text || (t->added && t->added[id])) continue;
        size_t slot = token_slot(t, t->bytes + t->begin[id], token_length(t, id));
        if (t->index.slots[slot] < 0) t->index.slots[slot] = id;
    }
    return 0;
}

int bpe_find_token(const Bpe* t, const char* bytes, size_t n) { return t->index.slots[token_slot(t, bytes, n)]; }

// ---- tables for encoding

int bpe_find_bytes(Bpe* t, int some_missing, Err err) {
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = bpe_find_token(t, &byte, 1);
        if (t->byte_id[b] < 0 && (!some_missing || b == '\n' || (b >= ' ' && b <= '~')))
            return fail(err, "no token for the byte 0x%02x alone: the vocabulary is not of the byte-level kind", b);
    }
    return 0;
}

int bpe_derive_merges(Bpe* t, Err err) {
    size_t total = t->n_bytes;  // upper bound of the number of cuts
    t->merges = malloc(MAX(1, total) * sizeof *t->merges);
    if (!t->merges || total > INT32_MAX) return fail(err, "out of memory for merges of %zu bytes of tokens", total);
    for (int id = 0; id < t->base.vocab; id++) {
        const char* bytes = t->bytes + t->begin[id];
        size_t n = token_length(t, id);
        if (bpe_find_token(t, bytes, n) != id) continue;
        for (size_t cut = 1; cut < n; cut++) {
            int left = bpe_find_token(t, bytes, cut), right = bpe_find_token(t, bytes + cut, n - cut);
            if (left >= 0 && right >= 0) t->merges[t->n_merges++] = (Merge){left, right, id, id};
        }
    }
    return 0;
}

int bpe_add_merge(Bpe* t, int left, int right) {
    char joined[512];  // a token has at most 255 bytes
    size_t n_left = token_length(t, left), n_right = token_length(t, right);
    memcpy(joined, t->bytes + t->begin[left], n_left);
    memcpy(joined + n_left, t->bytes + t->begin[right], n_right);
    int id = bpe_find_token(t, joined, n_left + n_right);
    if (id < 0) return -1;
    t->merges[t->n_merges] = (Merge){left, right, t->n_merges, id};
    t->n_merges++;
    return 0;
}

// Returns the place of this pair in the table, or the empty place where it would be.
static Merge* merge_place(const Bpe* t, int left, int right) {
    uint32_t place = (uint32_t)hash64((uint64_t)left << 32 | (uint32_t)right) & t->table_mask;
    while (t->table[place].left >= 0 && (t->table[place].left != left || t->table[place].right != right))
        place = (place + 1) & t->table_mask;
    return &t->table[place];
}

int bpe_index_merges(Bpe* t, Err err) {
    uint32_t n = power_of_two_above(2 * (uint64_t)t->n_merges);
    t->table = malloc(n * sizeof *t->table);
    t->table_mask = n - 1;
    if (!t->table) return fail(err, "out of memory for %d merges", t->n_merges);
    for (uint32_t i = 0; i < n; i++) t->table[i].left = -1;
    for (int i = 0; i < t->n_merges; i++) {
        Merge* place = merge_place(t, t->merges[i].left, t->merges[i].right);
        if (place->left < 0) *place = t->merges[i];
    }
    free(t->merges);
    t->merges = NULL;
    return 0;
}

static const Merge* find_merge(const Bpe* t, int left, int right) {
    const Merge* m = merge_place(t, left, right);
    return m->left < 0 ? NULL : m;
}

// ---- merging

static size_t merge_all_pairs(const Bpe* t, int* tokens, size_t n) {
    for (;;) {
        const Merge* best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const Merge* m = find_merge(t, tokens[i], tokens[i + 1]);
            if (m && (!best || m->rank < best->rank)) best = m, at = i;
        }
        if (!best) return n;
        tokens[at] = best->id;
        n--;
        memmove(tokens + at + 1, tokens + at + 2, (n - at - 1) * sizeof *tokens);
    }
}

// A linked list of tokens, each at the index of its first byte, and a heap of the pairs that may merge. The key
// rank << 32 | index of the left token makes the least key the merge to do next. Keys stay in the heap when a neighbour
// changes: whether one still holds is checked when it comes up.
typedef struct MergeList {
    const Bpe* t;
    int* tokens;            // (n), -1 where merged away
    uint32_t *next, *prev;  // (n), n after the last
    uint32_t n;
    uint64_t* heap;
    size_t n_heap;
} MergeList;

static void heap_push(MergeList* l, uint64_t key) {
    size_t i = l->n_heap++;
    for (; i > 0 && l->heap[(i - 1) / 2] > key; i = (i - 1) / 2) l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = key;
}

static uint64_t heap_pop(MergeList* l) {
    uint64_t least = l->heap[0], key = l->heap[--l->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < l->n_heap; i = child) {
        if (child + 1 < l->n_heap && l->heap[child + 1] < l->heap[child]) child++;
        if (l->heap[child] >= key) break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = key;
    return least;
}

static const Merge* merge_at(const MergeList* l, uint32_t i) {
    return l->tokens[i] < 0 || l->next[i] == l->n ? NULL : find_merge(l->t, l->tokens[i], l->tokens[l->next[i]]);
}

static void push_pair(MergeList* l, uint32_t i) {
    const Merge* m = merge_at(l, i);
    if (m) heap_push(l, (uint64_t)m->rank << 32 | i);
}

static size_t merge_by_heap(MergeList* l) {
    for (uint32_t i = 0; i < l->n; i++) l->next[i] = i + 1, l->prev[i] = i - 1;
    for (uint32_t i = 0; i < l->n; i++) push_pair(l, i);
    while (l->n_heap > 0) {
        uint64_t key = heap_pop(l);
        uint32_t i = (uint32_t)key;
        const Merge* m = merge_at(l, i);
        if (!m || (uint64_t)m->rank != key >> 32) continue;
        uint32_t gone = l->next[i], after = l->next[gone];
        l->tokens[i] = m->id;
        l->tokens[gone] = -1;
        l->next[i] = after;
        if (after < l->n) l->prev[after] = i;
        push_pair(l, i);
        if (i > 0) push_pair(l, l->prev[i]);
    }
    size_t n = 0;
    for (uint32_t i = 0; i < l->n; i = l->next[i]) l->tokens[n++] = l->tokens[i];
    return n;
}

size_t bpe_encode(const Bpe* t, int* out, const char* bytes, size_t n_bytes) {
    int whole = t->ignore_merges ? bpe_find_token(t, bytes, n_bytes) : -1;
    if (whole >= 0) return *out = whole, 1;
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        int id = t->byte_id[(unsigned char)bytes[i]];
        if (id >= 0) out[n++] = id;
    }
    if (n <= SHORT) return merge_all_pairs(t, out, n);
    // A merge takes one key out and puts two in at most, so 2n keys are enough.
    char* scratch = malloc(n * (2 * sizeof(uint64_t) + 2 * sizeof(uint32_t)));
    if (!scratch) return merge_all_pairs(t, out, n);  // slower, the same result
    MergeList l = {.t = t, .tokens = out, .n = (uint32_t)n, .heap = (uint64_t*)scratch};
    l.next = (uint32_t*)(l.heap + 2 * n);
    l.prev = l.next + n;
    size_t n_out = merge_by_heap(&l);
    free(scratch);
    return n_out;
}

// ---- parts: text is cut before tokens merge. Three patterns, as regular expressions:
//
//   GPT-2          's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   with digits    the same between numbers, each of which is a part (SmolLM2)
//   Llama 3, Qwen2 (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//                  |\s*[\r\n]+|\s+(?!\S)|\s+         where Qwen2 has \p{N} for \p{N}{1,3}
//
// that is: an English ending; a run of letters, of numbers or of other characters, with at most one space before it
// (Llama 3: any one character before letters, line breaks after others); white space, which leaves its last character
// to the part that follows (Llama 3: but a line break ends it). Bytes that are no UTF-8 are characters of their own, of
// the class "other". Sources: github.com/openai/gpt-2, src/encoder.py; the files tokenizer.json of SmolLM2, Llama 3 and
// Qwen2.5.

// Returns the class of the character, 'L', 'N', 'S' or 'O' for any other; *length = its bytes.
static char class_at(const char* text, size_t n, size_t* length) {
    uint32_t code = (unsigned char)text[0];
    if (code < 0x80) {
        *length = 1;
        if ((code | 32) - 'a' < 26) return 'L';
        if (code - '0' < 10) return 'N';
        return code == ' ' || code - '\t' < 5 ? 'S' : 'O';
    }
    return unicode_class(utf8_decode(text, n, length));
}

// Returns where the run of at most `most` characters of one class from `from` on ends; *last = where its last begins.
static size_t run_end(const char* text, size_t n, size_t from, char kind, size_t most, size_t* last) {
    size_t length;
    *last = from;
    for (; from < n && most > 0 && class_at(text + from, n - from, &length) == kind; most--) {
        *last = from;
        from += length;
    }
    return from;
}

static int is_break(char c) { return c == '\r' || c == '\n'; }

// Returns the length of an English ending at text, or 0. If case is ignored, the long s, U+017F, counts as an s.
static size_t ending_length(const char* text, size_t n, int any_case) {
    static const char* const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (text[0] != '\'') return 0;
    for (int i = 0; i < COUNT(endings); i++) {
        size_t length = strlen(endings[i]), k = 0;
        while (k < length && 1 + k < n && (any_case ? text[1 + k] | 32 : text[1 + k]) == endings[i][k]) k++;
        if (k == length) return 1 + length;
    }
    return any_case && n >= 3 && memcmp(text + 1, "\u017f", 2) == 0 ? 3 : 0;
}

// With `digits` a number ends the text before it, so that white space before it keeps its last character.
static size_t gpt2_length(const char* text, size_t n, int digits) {
    size_t length, last, begin = text[0] == ' ' && n > 1, ending = ending_length(text, n, 0);
    if (ending) return ending;
    char kind = class_at(text + begin, n - begin, &length);
    if (kind == 'N' && digits) return begin ? begin : length;
    if (kind != 'S') return run_end(text, n, begin, kind, SIZE_MAX, &last);
    size_t end = run_end(text, n, 0, 'S', SIZE_MAX, &last);
    if (end == n || last == 0 || (digits && class_at(text + end, n - end, &length) == 'N')) return end;
    return last;
}

static size_t llama3_length(const char* text, size_t n, size_t most_numbers) {
    size_t length, next, last, ending = ending_length(text, n, 1);
    if (ending) return ending;
    char kind = class_at(text, n, &length), kind_of_next = length < n ? class_at(text + length, n - length, &next) : 0;
    if (kind == 'N') return run_end(text, n, 0, 'N', most_numbers, &last);
    if (kind == 'L' || (kind_of_next == 'L' && !is_break(text[0])))
        return run_end(text, n, length, 'L', SIZE_MAX, &last);
    if (kind == 'O' || (kind_of_next == 'O' && text[0] == ' ')) {
        size_t end = run_end(text, n, length, 'O', SIZE_MAX, &last);
        while (end < n && is_break(text[end])) end++;
        return end;
    }
    size_t end = run_end(text, n, 0, 'S', SIZE_MAX, &last);
    for (size_t i = end; i > 0; i--)
        if (is_break(text[i - 1])) return i;
    return end == n || last == 0 ? end : last;
}

size_t pretoken_length(Pattern split, const char* text, size_t n) {
    if (split == SPLIT_GPT2 || split == SPLIT_GPT2_DIGITS) return gpt2_length(text, n, split == SPLIT_GPT2_DIGITS);
    return llama3_length(text, n, split == SPLIT_LLAMA3 ? 3 : 1);
}
