// unicode.c - see unicode.h. The tables are made of the digits in data/unicode_tables.h when the program starts.
#include "data/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "data/unicode_tables.h"
#include "plan/base/base.h"

// Of each code point its class, a place in class_names, and its combining class. No table goes beyond KNOWN.
enum { KNOWN = 0x32400, VOWELS = 0x1161, TRAILING = 0x11a8, N_VOWELS = 21, N_TRAILING = 27 };
static const char class_names[] = "OLNS";
static uint8_t classes[KNOWN], combining[KNOWN], doubtful[KNOWN];

typedef struct Decomposition {
    uint32_t parts[2], code;
} Decomposition;

static Decomposition by_code[DECOMPOSITIONS], by_parts[DECOMPOSITIONS];  // the second: those that are undone
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
    memset(doubtful + VOWELS, 1, N_VOWELS);
    memset(doubtful + TRAILING, 1, N_TRAILING);
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
int unicode_combining(uint32_t code) { return code < KNOWN ? combining[code] : 0; }
int unicode_is_doubtful(uint32_t code) { return code < KNOWN ? doubtful[code] : 0; }

static const Decomposition* find(Decomposition wanted, const Decomposition* in, size_t n,
                                 int (*compare)(const void*, const void*)) {
    return (const Decomposition*)bsearch(&wanted, in, n, sizeof wanted, compare);
}

const uint32_t* unicode_parts(uint32_t code) {
    const Decomposition* d = find((Decomposition){{0, 0}, code}, by_code, DECOMPOSITIONS, compare_code);
    return d ? d->parts : NULL;
}

uint32_t unicode_joined(uint32_t first, uint32_t second) {
    const Decomposition* d = find((Decomposition){{first, second}, 0}, by_parts, n_by_parts, compare_parts);
    return d ? d->code : 0;
}

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
