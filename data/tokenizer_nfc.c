// tokenizer_nfc.c - Unicode's normalization form C: characters are taken apart (é to e and an accent), marks are put
// into the order of their combining classes, then characters and marks are joined again where a joined form exists.
// Source: Unicode Standard Annex 15, and chapter 3.11 and 3.12 of the standard (order, composition, Hangul).
#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"
#include "data/unicode.h"
#include "plan/base/base.h"

// Hangul syllables are leading consonant (of 19), vowel (of 21) and trailing consonant (of 27, or none).
enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };

int nfc_is_normal(const char* text, size_t n) {
    int before = 0;  // the combining class of the character before
    for (size_t i = 0, length; i < n; i += length) {
        if ((unsigned char)text[i] < 0xcc) {  // below U+0300, a continuation byte, or none
            length = 1;
            before = 0;
            continue;
        }
        uint32_t code = utf8_decode(text + i, n - i, &length);
        int class = unicode_combining(code);
        if (unicode_is_doubtful(code) || (class && class < before)) return 0;
        before = class;
    }
    return 1;
}

// ---- apart

// Appends what code is at last taken apart into to out, which has n; returns how many it has then.
static size_t take_apart(uint32_t code, int* out, size_t n) {
    uint32_t s = code - S_BASE;
    if (s < L_COUNT * V_COUNT * T_COUNT) {
        out[n++] = (int)(L_BASE + s / T_COUNT / V_COUNT);
        out[n++] = (int)(V_BASE + s / T_COUNT % V_COUNT);
        if (s % T_COUNT) out[n++] = (int)(T_BASE + s % T_COUNT);
        return n;
    }
    for (const uint32_t* parts; (parts = unicode_parts(code)) != NULL; code = parts[0])
        if (parts[1]) return take_apart(parts[1], out, take_apart(parts[0], out, n));
    out[n] = (int)code;
    return n + 1;
}

// ---- order

// Sorts n marks by their classes and keeps the order of equals: class by class, so that a megabyte of marks takes no
// more than the number of classes (some 50) times its length. scratch has n ints.
static void sort_marks(int* codes, size_t n, int* scratch) {
    size_t done = 0;
    for (int class = 0, next; done < n; class = next) {
        next = 256;
        for (size_t i = 0; i < n; i++) {
            int of_this = unicode_combining((uint32_t)codes[i]);
            if (of_this == class) scratch[done++] = codes[i];
            else if (of_this > class) next = MIN(next, of_this);
        }
    }
    memcpy(codes, scratch, n * sizeof *codes);
}

static void put_in_order(int* codes, size_t n, int* scratch) {
    for (size_t begin = 0, end; begin < n; begin = end + 1) {
        int sorted = 1, before = 0;
        for (end = begin; end < n; end++) {
            int class = unicode_combining((uint32_t)codes[end]);
            if (class == 0) break;
            sorted &= class >= before;
            before = class;
        }
        if (!sorted) sort_marks(codes + begin, end - begin, scratch);
    }
}

// ---- together

// The code point that first and second are parts of, or 0.
static uint32_t joined(uint32_t first, uint32_t second) {
    uint32_t l = first - L_BASE, v = second - V_BASE, s = first - S_BASE, t = second - T_BASE;
    if (l < L_COUNT && v < V_COUNT) return S_BASE + (l * V_COUNT + v) * T_COUNT;
    if (s < L_COUNT * V_COUNT * T_COUNT && s % T_COUNT == 0 && t > 0 && t < T_COUNT) return first + t;
    return unicode_joined(first, second);
}

// A character joins the last one of class 0 when nothing stands between them that has class 0 or a class not below its
// own. Returns how many are left.
static size_t join(int* codes, size_t n) {
    size_t starter = SIZE_MAX, n_out = 0;
    int before = 0;  // the class of the last character, which is the starter or stands behind it
    for (size_t i = 0; i < n; i++) {
        int class = unicode_combining((uint32_t)codes[i]);
        int is_free = starter != SIZE_MAX && (starter + 1 == n_out || before < class);
        uint32_t both = is_free ? joined((uint32_t)codes[starter], (uint32_t)codes[i]) : 0;
        if (both) {
            codes[starter] = (int)both;
            continue;
        }
        if (class == 0) starter = n_out;
        before = class;
        codes[n_out++] = codes[i];
    }
    return n_out;
}

// ---- all three

// Apart there are at most 3/2 n code points, and together at most 3 n bytes (dev/unicode.py makes sure): work
// holds the code points and as many of scratch, then the code points in its first half and the bytes at its end.
size_t nfc_normalize(int* work, const char* text, size_t n) {
    char bytes[4];
    size_t n_codes = 0, n_bytes = 0;
    for (size_t i = 0, length; i < n; i += length)
        n_codes = take_apart(utf8_decode(text + i, n - i, &length), work, n_codes);
    put_in_order(work, n_codes, work + n_codes);
    n_codes = join(work, n_codes);
    for (size_t i = 0; i < n_codes; i++) n_bytes += utf8_encode(bytes, (uint32_t)work[i]);
    char* p = (char*)(work + 3 * n) - n_bytes;
    for (size_t i = 0; i < n_codes; i++) p += utf8_encode(p, (uint32_t)work[i]);
    return n_bytes;
}
