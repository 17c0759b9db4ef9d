// bpe.c - byte pair encoding. Text is cut into parts by GPT-2's pattern; inside a part, of all adjacent pairs of tokens
// that can merge the one of least rank does, the leftmost among equals, until none is left. Sources: Sennrich, Haddow,
// Birch 2016; github.com/openai/gpt-2, src/encoder.py; ids as ranks as in OpenAI's tiktoken.
//
// A vocabulary is turned into a table of pairs once: (left, right) -> (rank, id). Encoding then knows only integers.
// Parts of text are mostly words: those are merged in place by looking at every pair. Long parts keep the pairs in a
// heap, so that a megabyte of spaces takes n log n steps.
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "data/unicode_classes.h"
#include "plan/base.h"

enum { SHORT = 48 };  // bytes up to which looking at every pair is the faster way

static uint32_t power_of_two_above(uint64_t n) {
    uint64_t p = 4;
    while (p < n) p *= 2;
    return (uint32_t)MIN(p, 1u << 31);
}

static int* new_slots(uint32_t n) {
    int* slots = malloc((size_t)n * sizeof *slots);
    if (slots) memset(slots, 0xff, (size_t)n * sizeof *slots);
    return slots;
}

// ---- tokens by their bytes

// The slot of the token that has these bytes, or the empty slot where it would be.
static size_t token_slot(const TokenIndex* index, const char* bytes, size_t n) {
    const Tokenizer* t = index->t;
    size_t slot = hash_bytes(bytes, n, 0) & index->mask;
    for (; index->slots[slot] >= 0; slot = (slot + 1) & index->mask) {
        int id = index->slots[slot];
        if (token_length(t, id) == n && memcmp(t->bytes + t->begin[id], bytes, n) == 0) break;
    }
    return slot;
}

int token_index_open(TokenIndex* index, const Tokenizer* t, char* err, size_t errlen) {
    uint32_t n = power_of_two_above(2 * (uint64_t)t->vocab);
    *index = (TokenIndex){.t = t, .slots = new_slots(n), .mask = n - 1};
    if (!index->slots) return fail(err, errlen, "out of memory for a vocabulary of %d tokens", t->vocab);
    for (int id = 0; id < t->vocab; id++) {
        if (id == t->end_of_text) continue;
        size_t slot = token_slot(index, t->bytes + t->begin[id], token_length(t, id));
        if (index->slots[slot] < 0) index->slots[slot] = id;
    }
    return 0;
}

int token_index_find(const TokenIndex* index, const char* bytes, size_t n) {
    return index->slots[token_slot(index, bytes, n)];
}

void token_index_close(TokenIndex* index) {
    free(index->slots);
    index->slots = NULL;
}

// ---- tables for encoding

int bpe_find_bytes(Tokenizer* t, const TokenIndex* index, char* err, size_t errlen) {
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = token_index_find(index, &byte, 1);
        if (t->byte_id[b] < 0)
            return fail(err, errlen, "no token for the byte 0x%02x alone: the vocabulary is not of the byte-level kind",
                        b);
    }
    return 0;
}

int bpe_derive_merges(Tokenizer* t, const TokenIndex* index, char* err, size_t errlen) {
    size_t total = t->begin[t->vocab];  // there are at most so many cuts
    t->merges = malloc(MAX(1, total) * sizeof *t->merges);
    if (!t->merges || total > INT32_MAX)
        return fail(err, errlen, "out of memory for merges of %zu bytes of tokens", total);
    for (int id = 0; id < t->vocab; id++) {
        const char* bytes = t->bytes + t->begin[id];
        size_t n = token_length(t, id);
        if (token_index_find(index, bytes, n) != id) continue;
        for (size_t cut = 1; cut < n; cut++) {
            int left = token_index_find(index, bytes, cut), right = token_index_find(index, bytes + cut, n - cut);
            if (left >= 0 && right >= 0) t->merges[t->n_merges++] = (Merge){left, right, id, id};
        }
    }
    t->ids_are_ranks = 1;
    return 0;
}

int bpe_add_merge(Tokenizer* t, const TokenIndex* index, int left, int right) {
    char joined[512];  // a token has at most 255 bytes
    size_t n_left = token_length(t, left), n_right = token_length(t, right);
    memcpy(joined, t->bytes + t->begin[left], n_left);
    memcpy(joined + n_left, t->bytes + t->begin[right], n_right);
    int id = token_index_find(index, joined, n_left + n_right);
    if (id < 0) return -1;
    t->merges[t->n_merges] = (Merge){left, right, t->n_merges, id};
    t->n_merges++;
    return 0;
}

static uint32_t merge_slot(const Tokenizer* t, int left, int right) {
    uint32_t slot = (uint32_t)hash64((uint64_t)left << 32 | (uint32_t)right) & t->slot_mask;
    while (t->slots[slot] >= 0) {
        const Merge* m = &t->merges[t->slots[slot]];
        if (m->left == left && m->right == right) break;
        slot = (slot + 1) & t->slot_mask;
    }
    return slot;
}

int bpe_index_merges(Tokenizer* t, char* err, size_t errlen) {
    uint32_t n = power_of_two_above(2 * (uint64_t)t->n_merges);
    t->slots = new_slots(n);
    t->slot_mask = n - 1;
    if (!t->slots) return fail(err, errlen, "out of memory for %d merges", t->n_merges);
    for (int i = 0; i < t->n_merges; i++) {
        uint32_t slot = merge_slot(t, t->merges[i].left, t->merges[i].right);
        if (t->slots[slot] < 0) t->slots[slot] = i;
    }
    return 0;
}

static const Merge* find_merge(const Tokenizer* t, int left, int right) {
    int i = t->slots[merge_slot(t, left, right)];
    return i < 0 ? NULL : &t->merges[i];
}

// ---- merging

static size_t merge_all_pairs(const Tokenizer* t, int* tokens, size_t n) {
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
    const Tokenizer* t;
    int* tokens;            // (n), -1 where merged away
    uint32_t *next, *prev;  // (n), n behind the last
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

size_t bpe_encode(const Tokenizer* t, int* out, const char* bytes, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = t->byte_id[(unsigned char)bytes[i]];
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

// ---- parts of text
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// that is: an English ending; a run of letters, of numbers or of other characters, with at most one space before it;
// white space, which leaves its last character to the part that follows. Bytes that are no UTF-8 are characters of
// their own, of the class "other".

// The code point at the beginning of n > 0 bytes and its length; a byte that begins no valid UTF-8 gives U+FFFD and 1.
// Surrogates and code points above U+10FFFF pass: in the table they are of the class "other", as invalid bytes are.
static uint32_t decode_utf8(const char* text, size_t n, size_t* length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800,
                                     0x10000};  // longer forms of the code points below are not valid
    const unsigned char* p = (const unsigned char*)text;
    size_t want = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf8 ? 4 : 0;
    *length = 1;
    if (want == 1) return p[0];
    if (want == 0 || want > n) return 0xfffd;
    uint32_t code = p[0] & (0x7f >> want);
    for (size_t i = 1; i < want; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0xfffd;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[want]) return 0xfffd;
    *length = want;
    return code;
}

// 'L', 'N', 'S' or 'O' for any other, and the length of the character.
static char class_at(const char* text, size_t n, size_t* length) {
    uint32_t code = decode_utf8(text, n, length);
    if (code < 0x80) {
        if ((code | 32) - 'a' < 26) return 'L';
        if (code - '0' < 10) return 'N';
        return code == ' ' || code - '\t' < 5 ? 'S' : 'O';
    }
    int low = 0, high = COUNT(unicode_ranges);  // the last range with first <= code
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (unicode_ranges[middle].first <= code) low = middle;
        else high = middle;
    }
    const UnicodeRange* range = &unicode_ranges[low];
    return code >= range->first && code <= range->last ? range->kind : 'O';
}

// Bytes of the characters of one class from `from` on; *last = where the last of them begins.
static size_t run_end(const char* text, size_t n, size_t from, char kind, size_t* last) {
    size_t length;
    *last = from;
    while (from < n && class_at(text + from, n - from, &length) == kind) {
        *last = from;
        from += length;
    }
    return from;
}

size_t pretoken_length(const char* text, size_t n) {
    static const char* const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (int i = 0; text[0] == '\'' && i < COUNT(endings); i++) {
        size_t length = strlen(endings[i]);
        if (length < n && memcmp(text + 1, endings[i], length) == 0) return 1 + length;
    }
    size_t length, last, begin = text[0] == ' ' && n > 1;
    char kind = class_at(text + begin, n - begin, &length);
    if (kind != 'S') return run_end(text, n, begin, kind, &last);
    size_t end = run_end(text, n, 0, 'S', &last);
    return end < n && last > 0 ? last : end;
}
