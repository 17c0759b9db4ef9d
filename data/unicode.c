// unicode.c - see unicode.h. The tables are made of the digits in data/unicode_tables.h when the program starts.
//
// Form C: characters are taken apart (é to e and an accent), marks are put into the order of their combining classes,
// then characters and marks are joined again where a joined form exists. Source: Unicode Standard Annex 15, and chapter
// 3.11 and 3.12 of the standard (order, composition, Hangul).
#include "data/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "data/unicode_tables.h"
#include "plan/base/base.h"

// Tables by code point: its class, a place in class_names; its combining class (0 to 240); whether form C changes it or
// may join it to the one before. No table goes beyond KNOWN.
enum { KNOWN = 0x32400 };
static const char class_names[] = "OLNS";
static uint8_t classes[KNOWN], combining[KNOWN], doubtful[KNOWN];

// Hangul syllables are leading consonant (of 19), vowel (of 21) and trailing consonant (of 27, or none): computed.
enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };

typedef struct Decomposition {
    uint32_t parts[2], code;  // parts[1] is 0 where there is only one
} Decomposition;

static Decomposition by_code[DECOMPOSITIONS], by_parts[DECOMPOSITIONS];  // by_parts: those that form C undoes
static size_t n_by_parts;

static uint32_t next_number(const char** digits) {
    uint32_t n = 0, digit, place = 1;
    do {
        digit = (uint32_t)(strchr(order, *(*digits)++) - order);
        n += digit % BASE * place;
        place *= BASE;
    } while (digit >= BASE);
    return n;
}

static uint32_t next_difference(const char** digits) {
    uint32_t n = next_number(digits);
    return n % 2 ? ~(n / 2) : n / 2;
}

static int compare_code(const void* a, const void* b) {
    uint32_t x = ((const Decomposition*)a)->code, y = ((const Decomposition*)b)->code;
    return (x > y) - (x < y);
}

static int compare_parts(const void* a, const void* b) {
    const uint32_t *x = ((const Decomposition*)a)->parts, *y = ((const Decomposition*)b)->parts;
    int i = x[0] == y[0];
    return (x[i] > y[i]) - (x[i] < y[i]);
}

static void make_decompositions(void) {
    const char* p = part_digits;
    uint32_t code = 0, parts[2] = {0, 0};
    Decomposition* d = by_code;
    for (int i = 0; i < PART_DIGITS; i++) {
        uint32_t n = next_number(&p), is_joined = n % 2, has_two = n / 2 % 2;
        code += n / 4;
        for (uint32_t end = code + next_number(&p);; code++) {
            for (uint32_t k = 0; k <= has_two; k++) parts[k] += next_difference(&p);
            *d = (Decomposition){{parts[0], has_two ? parts[1] : 0}, code};
            if (is_joined) by_parts[n_by_parts++] = *d, doubtful[parts[1]] = 1;
            else doubtful[code] = 1;
            d++;
            if (code == end) break;
        }
    }
    qsort(by_parts, n_by_parts, sizeof *by_parts, compare_parts);
    memset(doubtful + V_BASE, 1, V_COUNT);
    memset(doubtful + T_BASE + 1, 1, T_COUNT - 1);
}

__attribute__((constructor)) static void make_tables(void) {
    const char *p = class_digits, *q = mark_digits;
    uint32_t at = 0;
    for (int i = 0; i < CLASS_DIGITS; i++) {
        uint32_t first = at + next_number(&p), n = next_number(&p);
        at = first + n / 3;
        memset(classes + first, (int)(n % 3 + 1), n / 3 + 1);
    }
    at = 0;
    for (int i = 0; i < MARK_DIGITS; i++) {
        uint32_t first = at + next_number(&q), n = next_number(&q);
        at = first + n;
        memset(combining + first, (int)next_number(&q), n + 1);
    }
    make_decompositions();
}

char unicode_class(uint32_t code) { return class_names[code < KNOWN ? classes[code] : 0]; }
static int combining_class(uint32_t code) { return code < KNOWN ? combining[code] : 0; }

// ---- UTF-8

uint32_t utf8_decode(const char* text, size_t n, size_t* length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};  // longer forms of what is below are not valid
    const unsigned char* p = (const unsigned char*)text;
    size_t want = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf8 ? 4 : 0;
    *length = 1;
    if (want == 1) return p[0];
    if (want == 0 || want > n) return UTF8_INVALID + p[0];
    uint32_t code = p[0] & (0x7f >> want);
    for (size_t i = 1; i < want; i++) {
        if ((p[i] & 0xc0) != 0x80) return UTF8_INVALID + p[0];
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[want]) return UTF8_INVALID + p[0];
    *length = want;
    return code;
}

size_t utf8_encode(char* out, uint32_t code) {
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    size_t more = code < 0x80 || code >= UTF8_INVALID ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *out = (char)(lead[more] | code >> 6 * more);
    for (size_t i = 1; i <= more; i++) out[i] = (char)(0x80 | (code >> 6 * (more - i) & 63));
    return 1 + more;
}

int nfc_is_normal(const char* text, size_t n) {
    int before = 0;  // the combining class of the character before
    for (size_t i = 0, length; i < n; i += length) {
        if ((unsigned char)text[i] < 0xcc) {  // below U+0300, a continuation byte, or none
            length = 1;
            before = 0;
            continue;
        }
        uint32_t code = utf8_decode(text + i, n - i, &length);
        int class = combining_class(code);
        if ((code < KNOWN && doubtful[code]) || (class && class < before)) return 0;
        before = class;
    }
    return 1;
}

// ---- form C: apart

// Appends the code points that `code` is finally taken apart into to out, which has n; returns how many it has then.
static size_t take_apart(uint32_t code, int* out, size_t n) {
    uint32_t s = code - S_BASE;
    if (s < L_COUNT * V_COUNT * T_COUNT) {
        out[n++] = (int)(L_BASE + s / T_COUNT / V_COUNT);
        out[n++] = (int)(V_BASE + s / T_COUNT % V_COUNT);
        if (s % T_COUNT) out[n++] = (int)(T_BASE + s % T_COUNT);
        return n;
    }
    const Decomposition wanted = {{0, 0}, code}, *d;
    d = bsearch(&wanted, by_code, DECOMPOSITIONS, sizeof wanted, compare_code);
    if (d) {
        n = take_apart(d->parts[0], out, n);
        return d->parts[1] ? take_apart(d->parts[1], out, n) : n;
    }
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
            int of_this = combining_class((uint32_t)codes[i]);
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
            int class = combining_class((uint32_t)codes[end]);
            if (class == 0) break;
            sorted &= class >= before;
            before = class;
        }
        if (!sorted) sort_marks(codes + begin, end - begin, scratch);
    }
}

// ---- together

// Returns the code point that first and second are parts of, or 0.
static uint32_t joined(uint32_t first, uint32_t second) {
    uint32_t l = first - L_BASE, v = second - V_BASE, s = first - S_BASE, t = second - T_BASE;
    if (l < L_COUNT && v < V_COUNT) return S_BASE + (l * V_COUNT + v) * T_COUNT;
    if (s < L_COUNT * V_COUNT * T_COUNT && s % T_COUNT == 0 && t > 0 && t < T_COUNT) return first + t;
    const Decomposition wanted = {{first, second}, 0}, *d;
    d = bsearch(&wanted, by_parts, n_by_parts, sizeof wanted, compare_parts);
    return d ? d->code : 0;
}

// A character joins the last one of class 0 when nothing stands between them that has class 0 or a class not below its
// own. Returns how many are left.
static size_t join(int* codes, size_t n) {
    size_t starter = SIZE_MAX, n_out = 0;
    int before = 0;  // the class of the last character, which is the starter or stands after it
    for (size_t i = 0; i < n; i++) {
        int class = combining_class((uint32_t)codes[i]);
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
