// fuzz_text.c - any bytes to the filter of foreign text. What it lets through is valid UTF-8 without anything that
// commands a terminal, never longer than what came, the same however it was cut; and a second pass changes nothing.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plan/base/text.h"
#include "test/fuzz/require.h"

static size_t filter(const uint8_t* data, size_t size, int keeps_lines, char* out) {
    TextFilter t = {{0}, 0, 0};
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        char part[TEXT_MOST];
        int more = text_filter(&t, data[i], keeps_lines, part);
        require(more >= 0 && more <= TEXT_MOST && n + (size_t)more <= i + 1);
        memcpy(out + n, part, (size_t)more);
        n += (size_t)more;
    }
    if (t.n > 0) out[n++] = '?';
    return n;
}

// Decodes anew, by comparing with every way to write the number.
static size_t check_character(const unsigned char* p, size_t n, int keeps_lines) {
    size_t length = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    require(p[0] < 0x80 || (p[0] >= 0xc2 && p[0] <= 0xf4));
    require(length <= n);
    uint32_t code = length == 1 ? p[0] : p[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        require((p[i] & 0xc0) == 0x80);
        code = code << 6 | (p[i] & 0x3f);
    }
    require(code >= (length == 4 ? 0x10000u : length == 3 ? 0x800u : length == 2 ? 0x80u : 0));
    require(code <= 0x10ffff && (code < 0xd800 || code > 0xdfff));
    require(code >= 32 || (keeps_lines && (code == '\n' || code == '\t')));
    require(code < 0x7f || code > 0x9f);
    require((code < 0x202a || code > 0x202e) && (code < 0x2066 || code > 0x2069) && (code & ~1u) != 0x2028);
    return length;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    char *once = malloc(size + 1), *twice = malloc(size + 1);
    for (int keeps_lines = 0; keeps_lines < 2; keeps_lines++) {
        size_t n = filter(data, size, keeps_lines, once);
        require(n <= size);
        for (size_t at = 0; at < n;) at += check_character((unsigned char*)once + at, n - at, keeps_lines);
        require(filter((uint8_t*)once, n, keeps_lines, twice) == n && !memcmp(once, twice, n));
    }
    memcpy(once, data, size);
    once[size] = 0;
    size_t length = strlen(once), n = filter(data, length, 0, twice);
    text_clean(once);
    require(strlen(once) == n && !memcmp(once, twice, n));
    free(once);
    free(twice);
    return 0;
}
