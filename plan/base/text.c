// text.c - foreign text made safe, byte by byte; see text.h.
#include "plan/base/text.h"

#include <string.h>

#include "plan/base/base.h"

// Returns whether the held bytes are one complete character, in its shortest form, that a terminal may have.
static int is_safe(const TextFilter* t, int keeps_lines) {
    static const unsigned char first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t code = t->held[0] & first_bits[t->wanted];
    for (int i = 1; i < t->wanted; i++) code = code << 6 | (t->held[i] & 0x3f);
    if (t->wanted == 0 || code < least[t->wanted] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
    if (code == '\n' || code == '\t') return keeps_lines;
    return code >= 0x20 && !(code >= 0x7f && code <= 0x9f) && !(code >= 0x2028 && code <= 0x202e) &&
           !(code >= 0x2066 && code <= 0x2069);
}

int text_filter(TextFilter* t, unsigned char byte, int keeps_lines, char out[TEXT_MOST]) {
    int n = 0;
    if (t->n > 0 && ((byte & 0xc0) != 0x80 || t->n >= (int)sizeof t->held)) {  // no character; this byte may begin one
        out[n++] = '?';
        t->n = 0;
    }
    if (t->n == 0) t->wanted = byte < 0x80 ? 1 : byte < 0xc0 || byte > 0xf7 ? 0 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    t->held[t->n++] = byte;
    if (t->n < t->wanted) return n;
    if (is_safe(t, keeps_lines)) memcpy(out + n, t->held, (size_t)t->n), n += t->n;
    else out[n++] = '?';
    t->n = 0;
    return n;
}

void text_print(FILE* out, TextFilter* t, const char* bytes, size_t n) {
    char safe[TEXT_MOST];
    for (size_t i = 0; i < n; i++) fwrite(safe, 1, (size_t)text_filter(t, (unsigned char)bytes[i], 1, safe), out);
}

void text_print_end(FILE* out, TextFilter* t) {
    if (t->n > 0) fputc('?', out);
    t->n = 0;
}

void text_clean(char* text) {
    TextFilter t = {{0}, 0, 0};
    char safe[TEXT_MOST], *to = text;
    for (const char* from = text; *from; from++) {
        int n = text_filter(&t, (unsigned char)*from, 0, safe);
        memcpy(to, safe, (size_t)n);  // never beyond `from`
        to += n;
    }
    if (t.n > 0) *to++ = '?';
    *to = 0;
}

void say_list(FILE* out, const char* format, va_list args) {
    char text[1 << 16];
    vsnprintf(text, sizeof text, format, args);
    text_clean(text);
    fputs(text, out);
}
