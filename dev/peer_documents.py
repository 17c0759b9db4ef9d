#!/usr/bin/env python3
"""peer_documents.py - ragged documents for measurements beside others, the same for all: lengths, and token shards.

    dev/peer_documents.py NAME [--tokens 1835008] [--median 400] [--sigma 1.2] [--most 8192] [--seed 1]

Lengths are log-normal, from 2 to --most. Writes NAME.lengths, one a line, for dev/peer_torch.py --lengths, and the
documents of these lengths for ./train --data: NAME-16.bin of GPT-2's ids, NAME-32.bin of ids below 128000, which
models of larger vocabularies have too. Ids are random: no id is frequent but the one that begins each document.
"""
import argparse
import array
import math
import random
import struct

# Shards as data/README.md has them: magic number, version, type code of the array, id that begins a document.
SHARDS = {"16": (20240520, 1, "H", 50256), "32": (20240801, 7, "I", 128000)}


def draw_lengths(o):
    draw, lengths, left = random.Random(o.seed), [], o.tokens
    while left >= 2:
        n = round(o.median * math.exp(draw.gauss(0, o.sigma)))
        lengths.append(max(2, min(n, o.most, left)))
        left -= lengths[-1]
    return lengths


def write_shard(path, kind, lengths, seed):
    magic, version, code, begin = SHARDS[kind]
    words = array.array(code)
    words.frombytes(random.Random(seed).randbytes(words.itemsize * sum(lengths)))
    ids, at = array.array(code, (word % begin for word in words)), 0
    for n in lengths:
        ids[at] = begin
        at += n
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", magic, version, len(ids), *[0] * 253) + ids.tobytes())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("name")
    p.add_argument("--tokens", type=int, default=14 * 131072)
    p.add_argument("--median", type=float, default=400)
    p.add_argument("--sigma", type=float, default=1.2)
    p.add_argument("--most", type=int, default=8192)
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    lengths = draw_lengths(o)
    with open(o.name + ".lengths", "w") as file:
        file.writelines(f"{n}\n" for n in lengths)
    for kind in SHARDS:
        write_shard(f"{o.name}-{kind}.bin", kind, lengths, o.seed)
    mean = sum(lengths) / len(lengths)
    print(f"documents: {len(lengths)} of {min(lengths)} to {max(lengths)} tokens, mean {mean:.0f}, {sum(lengths)} all")


if __name__ == "__main__":
    main()
