#!/usr/bin/env python3
"""Writes data/unicode_classes.h: the code points that GPT-2's pattern calls \\p{L}, \\p{N} and \\s.

    python3 dev/unicode_classes.py > data/unicode_classes.h

Letters and numbers come from Python's unicodedata, so their Unicode version is the interpreter's. unicodedata does
not know the property White_Space; its code points are listed here, from PropList.txt, unchanged since Unicode 6.3.
"""
import textwrap
import unicodedata

WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)}
WHITE_SPACE |= {0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def class_of(code):
    if code in WHITE_SPACE:
        return "S"
    category = unicodedata.category(chr(code))[0]
    return category if category in "LN" else None


def ranges():
    first, found = 0x80, []
    for code in range(0x80, 0x110001):
        last = code - 1
        if code == 0x110000 or class_of(code) != class_of(first):
            if class_of(first):
                found.append((first, last, class_of(first)))
            first = code
        if code == 0x110000:
            return found


print(f"""// unicode_classes.h - letters (L), numbers (N) and white space (S) of Unicode
// {unicodedata.unidata_version} from U+0080 on, as sorted ranges of code points, both ends included.
// Made by dev/unicode_classes.py, for data/bpe.c.
#pragma once
#include <stdint.h>

typedef struct UnicodeRange {{
    uint32_t first, last;
    char kind;
}} UnicodeRange;

// clang-format off
static const UnicodeRange unicode_ranges[] = {{""")
entries = [f"{{0x{a:X},0x{b:X},'{kind}'}}," for a, b, kind in ranges()]
print(textwrap.fill(" ".join(entries), 120, initial_indent="    ", subsequent_indent="    "))
print("};\n// clang-format on")
