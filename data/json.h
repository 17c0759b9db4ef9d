// json.h - reads JSON (RFC 8259) without copying: one pass turns a text into a flat array of values that point into it.
//
//   Json json;
//   if (json_parse(&json, text, n, err)) return -1;
//   const JsonValue* lr = json_get(json.values, "lr");     // NULL when absent
//   json_free(&json);
//
// The text must outlive the Json. Nesting deeper than 130 is refused, so hostile input cannot exhaust the stack.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "plan/base/base.h"

typedef enum JsonType { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct JsonValue {
    JsonType type;
    const char* text;  // first byte: of a string after its quote, still escaped; of the others as written
    size_t length;     // bytes of text (a string without its quotes)
    int n;             // children: elements of an array, members of an object
    int next;          // how far on the next element, or name of a member, stands; 0: this is the last
} JsonValue;

typedef struct Json {
    JsonValue* values;  // values[0] is the root; members of an object are key, value, key, value, ...
    int n;
} Json;

// 0, or -1 with a message that carries the byte offset. Trailing bytes other than white space are an error; a byte
// order mark in front is skipped (RFC 8259, section 8.1).
int json_parse(Json* json, const char* text, size_t n, Err err);
void json_free(Json* json);

// Return the first element of an array, and the first name of an object, whose value is the one after it; NULL: it has
// none, is of another type or not there.
//
//   for (const JsonValue* v = json_elements(array); v; v = json_next(v)) ...
//   for (const JsonValue* name = json_members(object); name; name = json_next(name)) ... name + 1
const JsonValue* json_elements(const JsonValue* array);
const JsonValue* json_members(const JsonValue* object);
const JsonValue* json_next(const JsonValue* value);  // the next element or name; NULL after the last

// Return the last member of an object by its exact unescaped name, as readers in other languages take it; the i-th
// element of an array; NULL when there is none.
const JsonValue* json_get(const JsonValue* object, const char* key);
const JsonValue* json_at(const JsonValue* array, int i);
int json_is(const JsonValue* value, const char* text);  // 1: it is this string

// Returns how many bytes of a value a message shows: at most 60, and no more than its line, as an object has several.
int json_shown(const JsonValue* value);
// Writes the names of an object's members, as a message shows them, to words, and returns that.
const char* json_names(const JsonValue* object, char* words, size_t room);

// Conversions: 0, or -1 (*out stays) when the value is NULL, has another type or does not fit. Integers are exact and
// are those written without point and exponent; a double is the nearest one, finite, of at most 511 characters.
int json_double(const JsonValue* value, double* out);
int json_int64(const JsonValue* value, int64_t* out);
int json_uint64(const JsonValue* value, uint64_t* out);

// Unescapes a string into out (at most value->length + 1 bytes are written, UTF-8, terminated; NUL bytes may occur
// inside). Returns its length, or -1 when value is no string or holds a bad escape or a lone surrogate. Bytes outside
// of escapes are copied as they are, UTF-8 or not.
int64_t json_string(const JsonValue* value, char* out);
// json_prose does so with text that people wrote: a lone surrogate becomes U+FFFD, since no text holds one. *replaced
// counts them.
int64_t json_prose(const JsonValue* value, char* out, int64_t* replaced);

// json_text reads short strings of people: -1 also if one takes more than `room` bytes with its NUL, or holds a control
// character (a NUL would make two names look equal, a line break would tear a message). 0, or -1.
int json_text(const JsonValue* value, char* out, size_t room);

// Writes n bytes as a JSON string with quotes into out (room for 6 * n + 3 bytes), returns the length. Bytes that are
// not valid UTF-8 become U+FFFD.
size_t json_quote(char* out, const char* bytes, size_t n);
void json_put(FILE* out, const char* bytes, size_t n);  // the same into a stream
// json_put_bytes does so with bytes that need not be text, as paths: a byte XX that is none becomes \udcXX (as in
// Python's PEP 383). json_bytes turns it back, json_string refuses it.
void json_put_bytes(FILE* out, const char* bytes, size_t n);
int64_t json_bytes(const JsonValue* value, char* out);

// Ends a stream of open_memstream. Returns its text, which the caller frees; NULL: no memory, and nothing to free.
char* json_end(FILE* out, char** text);
