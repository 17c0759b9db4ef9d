// text.c - foreign text made safe, byte by byte; see text.h.
#define _POSIX_C_SOURCE 200809L
#include "plan/text.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Bytes of the character that begins so, 0 when none does.
static int character_bytes(unsigned char first) {
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return 2;
    if (first >= 0xe0 && first <= 0xef) return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

// May this byte follow? The second one is where longer forms of short characters, surrogates and numbers above U+10FFFF
// are refused.
static int may_follow(const TextFilter* t, unsigned char byte) {
    unsigned char low = 0x80, high = 0xbf;
    if (t->n == 1 && t->held[0] == 0xe0) low = 0xa0;
    if (t->n == 1 && t->held[0] == 0xed) high = 0x9f;
    if (t->n == 1 && t->held[0] == 0xf0) low = 0x90;
    if (t->n == 1 && t->held[0] == 0xf4) high = 0x8f;
    return byte >= low && byte <= high;
}

static uint32_t code_point(const TextFilter* t) {
    static const unsigned char first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t code = t->held[0] & first_bits[t->n];
    for (int i = 1; i < t->n; i++) code = code << 6 | (t->held[i] & 0x3f);
    return code;
}

static int is_safe(uint32_t code, int keeps_lines) {
    if (code == '\n' || code == '\t') return keeps_lines;
    return code >= 0x20 && !(code >= 0x7f && code <= 0x9f) && !(code >= 0x2028 && code <= 0x202e) &&
           !(code >= 0x2066 && code <= 0x2069);
}

int text_filter(TextFilter* t, unsigned char byte, int keeps_lines, char out[TEXT_MOST]) {
    int n = 0;
    if (t->n > 0 && !may_follow(t, byte)) {  // what was held is no character; this byte may begin one
        out[n++] = '?';
        t->n = 0;
    }
    if (t->n == 0) t->wanted = character_bytes(byte);
    t->held[t->n++] = byte;
    if (t->n < t->wanted) return n;
    if (t->wanted > 0 && is_safe(code_point(t), keeps_lines)) {
        memcpy(out + n, t->held, (size_t)t->n);
        n += t->n;
    } else {
        out[n++] = '?';
    }
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
    char brief[1024], *text = brief;
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(brief, sizeof brief, format, args);
    if (n >= (int)sizeof brief) text = (char*)malloc((size_t)n + 1);
    if (text && text != brief) vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    if (!text) text = brief;  // no memory: as much of it as fits
    text_clean(text);
    fputs(text, out);
    if (text != brief) free(text);
}

void say_part(FILE* out, const char* format, ...) {
    va_list args;
    va_start(args, format);
    say_list(out, format, args);
    va_end(args);
}

void say(FILE* out, const char* format, ...) {
    va_list args;
    va_start(args, format);
    say_list(out, format, args);
    va_end(args);
    fputc('\n', out);
}

const char* text_quoted(const char* text, char* word, size_t room) {
    const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%";
    size_t n = 0;
    if (*text && !text[strspn(text, plain)]) {
        snprintf(word, room, "%s", text);
        return word;
    }
    if (n + 1 < room) word[n++] = '\'';
    for (; *text && n + 6 < room; text++) {
        if (*text == '\'') n += (size_t)snprintf(word + n, room - n, "'\\''");
        else word[n++] = *text;
    }
    if (n + 1 < room) word[n++] = '\'';
    word[n] = 0;
    return word;
}

const char* text_many(int64_t n, const char* noun, char text[64]) {
    snprintf(text, 64, "%" PRId64 " %.40s%s", n, noun, n == 1 ? "" : "s");
    return text;
}

const char* text_duration(double seconds, char text[32]) {
    long s = seconds > 0 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600) snprintf(text, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60) snprintf(text, 32, "%ldm%02lds", s / 60, s % 60);
    else snprintf(text, 32, "%lds", s);
    return text;
}

const char* text_bytes(double bytes, char text[32]) {
    double mib = bytes / (1 << 20);
    if (mib >= 10240) snprintf(text, 32, "%.1f GiB", mib / 1024);
    else snprintf(text, 32, "%.1f MiB", mib);
    return text;
}
