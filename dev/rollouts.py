#!/usr/bin/env python3
"""rollouts.py - prompts with several answers each, as trees and as the same paths written out, for measurements.

  dev/rollouts.py NAME [--prompts 64] [--prompt 512] [--answers 8,16] [--lengths 64,512 | --median 400 --sigma 1.2]
                  [--most 8192] [--seed 1] [--play MACHINE --cost QUADRATIC_MS,LINEAR_MS]

Writes NAME-trees.jsonl and NAME-flat.jsonl, of bytes: a prompt takes as many tokens as characters, and one for the
beginning. Lengths of answers are uniform (--lengths) or log-normal. Prints tokens of both, and the ratio of their
FLOPs as the log counts them, of a GPT-2 of bytes (--layers, --width) or in a machine's cost model (--cost). With
--play 64 virtual ranks take a step of both, and a row of dev/results/trees.md is printed instead.
"""
import argparse
import json
import math
import random
import subprocess

p = argparse.ArgumentParser()
p.add_argument("name")
p.add_argument("--prompts", type=int, default=64)
p.add_argument("--prompt", type=int, default=512)
p.add_argument("--answers", default="8,16")
p.add_argument("--lengths")
p.add_argument("--median", type=float, default=400)
p.add_argument("--sigma", type=float, default=1.2)
p.add_argument("--most", type=int, default=8192)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--layers", type=int, default=4)
p.add_argument("--width", type=int, default=256)
p.add_argument("--cost", help="quadratic_ms,linear_ms of a machine")
p.add_argument("--play", help="machine")
a = p.parse_args()

draw = random.Random(a.seed)


def text(n):
    return "".join(draw.choice("abcdefghijklmnop ") for _ in range(n))


def length():
    if a.lengths:
        low, high = map(int, a.lengths.split(","))
        return draw.randint(low, high)
    return max(1, min(a.most, round(a.median * math.exp(draw.gauss(0, a.sigma)))))


low, high = map(int, a.answers.split(",")) if "," in a.answers else (int(a.answers),) * 2
tokens = {"trees": 0, "flat": 0}
squares = {"trees": 0, "flat": 0}
longest = 0
with open(a.name + "-trees.jsonl", "w") as trees, open(a.name + "-flat.jsonl", "w") as flat:
    for _ in range(a.prompts):
        prompt, answers = text(a.prompt), [text(length()) for _ in range(draw.randint(low, high))]
        print(json.dumps({"prompt": prompt, "answers": answers}), file=trees)
        size = a.prompt  # the beginning's token, without the last of the prompt
        pairs = a.prompt ** 2
        for answer in answers:
            print(json.dumps({"prompt": prompt, "completion": answer}), file=flat)
            own, path = len(answer) + 2, a.prompt + len(answer) + 2
            size, pairs = size + own, pairs + own * (own + 2 * a.prompt)
            tokens["flat"], squares["flat"] = tokens["flat"] + path, squares["flat"] + path ** 2
        tokens["trees"], squares["trees"] = tokens["trees"] + size, squares["trees"] + pairs
        longest = max(longest, size)
pair, token = 6 * a.layers * a.width, 6 * (12 * a.layers * a.width ** 2 + 257 * a.width)
if a.cost:
    pair, token = map(float, a.cost.split(","))
flops = {k: token * tokens[k] + pair * squares[k] for k in tokens}


def played(how):
    """Milliseconds of a step of all of it, and how far its plan is from the bound."""
    data, out = f"{a.name}-{how}.jsonl", f"{a.name}-{how}"
    subprocess.run(["build/release/train", "--device", "virtual", "--ranks", "64", "--machine", a.play, "--layers", "4",
                    "--width", "256", "--heads", "8", "--context", "8192", "--steps", "1", "--eval-every", "0",
                    "--sample-every", "0", "--save-every", "0", "--batch-tokens", str(tokens[how]), "--data", data,
                    "--val", data, "--out", out], check=True, capture_output=True)
    with open(out + "/log.jsonl") as log:
        step = next(x for x in map(json.loads, log) if "step" in x)
    return step["measured_ms"], step["gap"]


limit = flops["flat"] / flops["trees"]
if a.play:
    (ms, gap), (ms_flat, gap_flat) = played("trees"), played("flat")
    print(f"| {a.play}, {a.seed} | {longest} | {ms:.1f} | {ms_flat:.1f} | {ms_flat / ms:.3f} | {limit:.3f} "
          f"| {100 * ms_flat / ms / limit:.1f} % | {100 * gap:.1f} %, {100 * gap_flat:.1f} % |")
else:
    ratio = tokens["flat"] / tokens["trees"]
    print(f"tokens: trees {tokens['trees']}, written out {tokens['flat']}, ratio {ratio:.4f}")
    print(f"FLOPs: ratio {limit:.4f}; the largest tree has {longest} tokens")
