// unicode.c - see unicode.h. The tables are made of the digits in data/unicode_tables.h when the program starts.
#include "data/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "data/unicode_tables.h"
#include "plan/base.h"

typedef struct Range {
    uint32_t first, last;
    char kind;
} Range;

static Range ranges[CLASS_DIGITS];                     // ascending
static UnicodeMark marks[MARK_DIGITS];                 // ascending
static uint32_t decompositions[PART_DIGITS][3];        // a code point and its parts, ascending by the code point
static const uint32_t (*compositions[PART_DIGITS])[3]; // those that are undone, ascending by the parts
static int n_compositions;

static uint32_t next_number(const char** digits) {
    static const char order[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t n = 0, digit;
    int shift = 0;
    do {
        digit = (uint32_t)(strchr(order, *(*digits)++) - order);
        n |= (digit & 31) << shift;
        shift += 5;
    } while (digit >= 32);
    return n;
}

static uint32_t next_difference(const char** digits) {
    uint32_t n = next_number(digits);
    return n % 2 ? ~(n / 2) : n / 2;
}

static int by_parts(const void* a, const void* b) {
    const uint32_t *x = **(const uint32_t(*const*)[3])a, *y = **(const uint32_t(*const*)[3])b;
    return x[1] != y[1] ? (x[1] > y[1]) - (x[1] < y[1]) : (x[2] > y[2]) - (x[2] < y[2]);
}

__attribute__((constructor)) static void make_tables(void) {
    const char* p = class_digits;
    uint32_t at = 0;
    for (int i = 0; i < CLASS_DIGITS; i++) {
        uint32_t first = at + next_number(&p), n = next_number(&p);
        ranges[i] = (Range){first, at = first + n / 3, "LNS"[n % 3]};
    }
    p = mark_digits, at = 0;
    for (int i = 0; i < MARK_DIGITS; i++) {
        uint32_t first = at + next_number(&p), n = next_number(&p);
        marks[i] = (UnicodeMark){first, at = first + n / 2, (uint8_t)next_number(&p), n % 2};
    }
    p = part_digits;
    for (int i = 0; i < PART_DIGITS; i++) {
        const uint32_t* before = i ? decompositions[i - 1] : (const uint32_t[3]){0};
        uint32_t n = next_number(&p), *d = decompositions[i];
        d[0] = before[0] + n / 2;
        d[1] = before[1] + next_difference(&p);
        d[2] = before[2] + next_difference(&p);
        if (n % 2) compositions[n_compositions++] = (const uint32_t(*)[3])d;
    }
    qsort(compositions, (size_t)n_compositions, sizeof *compositions, by_parts);
}

char unicode_class(uint32_t code) {
    int low = 0, high = COUNT(ranges);  // the last range with first <= code
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (ranges[middle].first <= code) low = middle;
        else high = middle;
    }
    return code >= ranges[low].first && code <= ranges[low].last ? ranges[low].kind : 'O';
}

const UnicodeMark* unicode_mark(uint32_t code) {
    static const UnicodeMark none;
    int low = 0, high = COUNT(marks);  // the last range with first <= code
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (marks[middle].first <= code) low = middle;
        else high = middle;
    }
    return code >= marks[low].first && code <= marks[low].last ? &marks[low] : &none;
}

const uint32_t* unicode_parts(uint32_t code) {
    int low = 0, high = COUNT(decompositions);
    while (low < high) {
        int middle = (low + high) / 2;
        if (decompositions[middle][0] < code) low = middle + 1;
        else high = middle;
    }
    return low < COUNT(decompositions) && decompositions[low][0] == code ? decompositions[low] + 1 : NULL;
}

uint32_t unicode_joined(uint32_t first, uint32_t second) {
    int low = 0, high = n_compositions;
    while (low < high) {
        int middle = (low + high) / 2;
        const uint32_t* d = *compositions[middle];
        if (d[1] == first && d[2] == second) return d[0];
        if (d[1] < first || (d[1] == first && d[2] < second)) low = middle + 1;
        else high = middle;
    }
    return 0;
}
