#!/usr/bin/env python3
"""Writes the tables of Unicode that data/ needs:

    python3 dev/unicode_classes.py classes > data/unicode_classes.h     what patterns call \\p{L}, \\p{N} and \\s
    python3 dev/unicode_classes.py nfc > data/unicode_nfc.h             normalization form C

Both come from the package unicodedata2 (pip install unicodedata2==16.0.0), so their Unicode version is the package's.
It does not know the property White_Space; its code points are listed here, from PropList.txt, unchanged since Unicode
6.3.
"""
import sys
import textwrap

import unicodedata2 as unicodedata

WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)}
WHITE_SPACE |= {0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
HANGUL = range(0xAC00, 0xD7A4)  # data/tokenizer_nfc.c computes these


def ranges(first, value_of):
    """(first, last, value) of all runs of code points from `first` on whose value is the same and not None."""
    found = []
    for code in range(first + 1, 0x110001):
        if code == 0x110000 or value_of(code) != value_of(first):
            if value_of(first) is not None:
                found.append((first, code - 1, value_of(first)))
            first = code
    return found


def table(declaration, entries):
    text = textwrap.fill(" ".join(entries), 120, initial_indent="    ", subsequent_indent="    ")
    print(f"static const {declaration} = {{\n{text}\n}};")


def write_classes():
    def class_of(code):
        category = unicodedata.category(chr(code))[0]
        return "S" if code in WHITE_SPACE else category if category in "LN" else None

    print(f"""// unicode_classes.h - letters (L), numbers (N) and white space (S) of Unicode
// {unicodedata.unidata_version} from U+0080 on, as sorted ranges of code points, both ends included.
// Made by dev/unicode_classes.py, for data/tokenizer_split.c.
#pragma once
#include <stdint.h>

typedef struct UnicodeRange {{
    uint32_t first, last;
    char kind;
}} UnicodeRange;

// clang-format off""")
    table("UnicodeRange unicode_ranges[]", [f"{{0x{a:X},0x{b:X},'{kind}'}}," for a, b, kind in ranges(0x80, class_of)])
    print("// clang-format on")


def write_nfc():
    normalize = unicodedata.normalize
    parts = {}
    for code in range(0x110000):
        field = unicodedata.decomposition(chr(code))
        if field and field[0] != "<" and code not in HANGUL:
            parts[code] = [int(part, 16) for part in field.split()]
    composed = sorted(code for code in parts if normalize("NFC", chr(code)) == chr(code))
    seconds = {parts[code][1] for code in composed} | {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    for code in {*parts, *HANGUL}:  # what data/tokenizer_nfc.c takes room for
        whole, n = normalize("NFD", chr(code)), len(chr(code).encode())
        assert len(whole.encode()) <= 3 * n and 2 * len(whole) <= 3 * n

    def mark_of(code):
        excluded = code in parts and normalize("NFC", chr(code)) != chr(code)
        mark = (unicodedata.combining(chr(code)), int(excluded or code in seconds))
        return mark if mark != (0, 0) else None

    print(f"""// unicode_nfc.h - what normalization form C needs of Unicode
// {unicodedata.unidata_version}. Hangul syllables are not here: they are computed.
// Made by dev/unicode_classes.py, for data/tokenizer_nfc.c.
#pragma once
#include <stdint.h>

// Code points with a combining class above 0, and (doubtful) those that change in form C or may join the one before.
// Sorted ranges, both ends included.
typedef struct UnicodeMark {{
    uint32_t first, last;
    uint8_t combining_class, doubtful;
}} UnicodeMark;

// clang-format off""")
    marks = ranges(0, mark_of)
    assert marks[0][0] == 0x300  # text below is in form C
    table("UnicodeMark unicode_marks[]", [f"{{0x{a:X},0x{b:X},{c},{d}}}," for a, b, (c, d) in marks])
    print("\n// A code point and the one or two that it decomposes into, sorted by the first of the three.")
    order = sorted(parts)
    table("uint32_t unicode_decompositions[][3]",
          ["{" + ",".join(f"0x{x:X}" for x in [code, *parts[code]]) + "}," for code in order])
    print("\n// Of the decompositions into two those that are undone: their indices, sorted by the two.")
    index = {code: i for i, code in enumerate(order)}
    table("uint16_t unicode_compositions[]", [f"{index[code]}," for code in sorted(composed, key=parts.get)])
    print("// clang-format on")


{"classes": write_classes, "nfc": write_nfc}[sys.argv[1]]()
