#!/usr/bin/env python3
"""Writes data/unicode_tables.h, what data/unicode.c knows of Unicode:

    python3 dev/unicode.py > data/unicode_tables.h

It comes from the package unicodedata2 (pip install unicodedata2==16.0.0), so its Unicode version is the package's. That
does not know the property White_Space; its code points are listed here, from PropList.txt, unchanged since Unicode 6.3.
"""
import unicodedata2 as unicodedata

WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)}
WHITE_SPACE |= {0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
HANGUL = range(0xAC00, 0xD7A4)  # data/unicode.c computes these
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'()*+,-./:;<=>@[]^_`{|}~"
BASE = len(DIGITS) // 2


def ranges(first, value_of):
    """(first, last, value) of all runs of code points from `first` on whose value is the same and not None."""
    found = []
    for code in range(first + 1, 0x110001):
        if code == 0x110000 or value_of(code) != value_of(first):
            if value_of(first) is not None:
                found.append((first, code - 1, value_of(first)))
            first = code
    return found


def written(n):
    """A number >= 0 in digits of BASE, the lowest first, BASE more where another digit follows."""
    return DIGITS[n] if n < BASE else DIGITS[BASE + n % BASE] + written(n // BASE)


def signed(n):
    return written(2 * n if n >= 0 else -2 * n - 1)


def table(name, words, count, text):
    lines = [text[i:i + 114] for i in range(0, len(text), 114)]
    print(f"\n// {words}\nenum {{ {name.upper()} = {count} }};\nstatic const char {name}[] =\n    \"" +
          '"\n    "'.join(lines) + '";')


def class_of(code):
    category = unicodedata.category(chr(code))[0]
    return "S" if code in WHITE_SPACE else category if category in "LN" else None


def write_ranges():
    text, before = "", 0
    found = ranges(0x80, class_of)
    for first, last, kind in found:
        text += written(first - before) + written(3 * (last - first) + "LNS".index(kind))
        before = last
    table("class_digits", "Ranges of letters, numbers and white space from U+0080 on: distance from the range before, "
          "3 (code\n// points - 1) + 0, 1, 2.", len(found), text)


def write_marks():
    found, text, before = ranges(0, lambda code: unicodedata.combining(chr(code)) or None), "", 0
    assert found[0][0] == 0x300  # text below is in form C
    for first, last, combining_class in found:
        text += written(first - before) + written(last - first) + written(combining_class)
        before = last
    table("mark_digits", "Ranges of combining classes above 0: distance from the range before, code points - 1, class.",
          len(found), text)


def write_parts(parts, composed):
    def kind_of(code):
        return 2 * (len(parts[code]) == 2) + (code in composed) if code in parts else None

    found, text, before, last_parts = ranges(0, kind_of), "", 0, [0, 0]
    for first, last, kind in found:
        text += written(4 * (first - before) + kind) + written(last - first)
        before = last
        for code in range(first, last + 1):
            for i, part in enumerate(parts[code]):
                text += signed(part - last_parts[i])
                last_parts[i] = part
    table("part_digits", "Ranges of decompositions: 4 times the distance from the range before, + 2 where there are "
          "two parts, + 1 where\n// these are joined again; code points - 1; of each its parts, as differences from "
          "those before.", len(found), text)


def main():
    parts = {}
    for code in range(0x110000):
        field = unicodedata.decomposition(chr(code))
        if field and field[0] != "<" and code not in HANGUL:
            parts[code] = [int(part, 16) for part in field.split()]
    composed = {code for code in parts if unicodedata.normalize("NFC", chr(code)) == chr(code)}
    for code in {*parts, *HANGUL}:  # what data/unicode.c takes room for
        whole, n = unicodedata.normalize("NFD", chr(code)), len(chr(code).encode())
        assert len(whole.encode()) <= 3 * n and 2 * len(whole) <= 3 * n
    print(f"// unicode_tables.h - Unicode {unicodedata.unidata_version} for data/unicode.c, made by dev/unicode.py. "
          f"Numbers in\n// digits of base {BASE}, the lowest first; signed ones as 2 n or -2 n - 1.\n#pragma once\n")
    print(f"enum {{ BASE = {BASE}, DECOMPOSITIONS = {len(parts)} }};\nstatic const char order[] =\n    \"{DIGITS}\";")
    write_ranges()
    write_marks()
    write_parts(parts, composed)


main()
