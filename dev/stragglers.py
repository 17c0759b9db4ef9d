#!/usr/bin/env python3
"""Slow ranks in a tensor-parallel group: what balancing wins, and what it costs in loss, in virtual time.

    dev/stragglers.py [--train ./train] [--parts bound,several,accuracy] [--work DIR] [--data PATH]

Runs ./train on virtual ranks (--device virtual, virtual-cpu: see run/README.md) with injected stragglers and prints
tables, which dev/results/stragglers.md explains. Times are those of a machine file, the same digits in every run;
losses are real. Needs mpirun; some ten minutes on two cores.
  bound     R = 4 and 8 ranks, one of them 2, 4 or 8 times as slow in its matmuls, for models of 16 and 32 heads.
  several   several stragglers, and one that moves from rank to rank.
  accuracy  validation loss after the same steps and after the same virtual time, three seeds.
A run whose log is complete in DIR is not run again.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys


def bound(chi, ranks):
    """The lossless bound: speed-up when all work is divided evenly by speed."""
    return chi * (ranks - 1 + 1 / chi) / ranks


def bound_ms(slow, healthy, off):
    """The same for a step of which m ms, of a healthy rank, are slowed, and the rest can neither move nor shrink; slow
    has a factor for each rank."""
    m = (off - healthy) / (max(slow) - 1)
    return healthy - m + m * len(slow) / sum(1 / x for x in slow)


def run(args, name, ranks, options):
    """The log of a run: steps and evaluations."""
    out = os.path.join(args.work, name)
    wanted = int(options[options.index("--steps") + 1])
    if len(read(out)[0]) < wanted:
        shutil.rmtree(out, ignore_errors=True)
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), args.train, "--threads", "1",
                   "--tp", str(ranks), "--machine", "h200-8b", "--save-every", "0", "--sample-every", "0", "--data",
                   args.data, "--out", out] + options
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(" ".join(command) + "\n" + done.stdout[-2000:])
        print("ran", name, file=sys.stderr, flush=True)
    return read(out)


def read(out):
    path = os.path.join(out, "log.jsonl")
    if not os.path.exists(path):
        return [], []
    lines = [json.loads(line) for line in open(path)]
    return [x for x in lines if "measured_ms" in x], [x for x in lines if "val_loss" in x]


def table(columns):
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]


def row(cells):
    return "| " + " | ".join(cells) + " |"


def straggle(slow, first=1, last=None):
    end = "" if last is None else f",to={last}"
    return ";".join(f"rank={r},x={x},from={first}{end}" for r, x in enumerate(slow) if x > 1)


# ---- speed: a step of one shape, so that steps differ by nothing but balancing

SPEED = ["--device", "virtual", "--dtype", "bf16", "--layers", "2", "--width", "4096", "--vocab", "50257", "--context",
         "4096", "--capacity", "16384", "--batch-tokens", "16384", "--overfit", "--plan", "refresh=4", "--steps", "13"]


def speed(args, heads, slow):
    """ms of a step: healthy, off and on."""
    ranks, options = len(slow), SPEED + ["--heads", str(heads)]
    healthy = run(args, f"speed-{ranks}-{heads}", ranks, options)[0][-1]["measured_ms"]
    name = f"speed-{ranks}-{heads}-" + "-".join(f"{x:g}" for x in slow)
    log = run(args, name, ranks, options + ["--balance", "migrate", "--straggle", straggle(slow)])[0]
    return healthy, log[2]["measured_ms"], log[-1]["measured_ms"]


SPEED_COLUMNS = ["heads", "slow ranks", "ms healthy", "ms off", "ms on", "times faster", "least ms",
                 "of the bound with c", "slowdown removed", "bound allows"]


def speed_row(args, heads, slow):
    healthy, off, on = speed(args, heads, slow)
    least = bound_ms(slow, healthy, off)
    words = ", ".join(f"{x:g}" for x in slow if x > 1) + f" of {len(slow)}"
    return row([str(heads), words, f"{healthy:.1f}", f"{off:.1f}", f"{on:.1f}", f"{off / on:.2f}", f"{least:.1f}",
                f"{least / on:.1%}", f"{(off - on) / (off - healthy):.1%}", f"{(off - least) / (off - healthy):.1%}"])


def bound_table(args):
    return table(SPEED_COLUMNS) + [speed_row(args, heads, [1, chi] + [1] * (ranks - 2))
                                   for ranks in (4, 8) for heads in (16, 32) for chi in (2, 4, 8)]


def several_table(args):
    cases = [[1, 4, 1, 2], [8, 1, 6, 1, 1, 4, 1, 2], [2, 2, 1, 1, 1, 1, 1, 1], [8, 8, 1, 1, 1, 1, 1, 1]]
    return table(SPEED_COLUMNS) + [speed_row(args, 32, slow) for slow in cases]


# ---- loss: a small model, whose matmuls and attention stand for those of the machine's

STEPS, MOVES = 120, 30
TEXT = ["--device", "virtual-cpu", "--dtype", "fp32", "--layers", "2", "--width", "128", "--heads", "16", "--context",
        "64", "--batch-tokens", "1024", "--capacity", "1024", "--lr", "4e-3", "--warmup", "10", "--steps", str(STEPS),
        "--eval-every", "10", "--eval-every", "tokens=8192", "--plan", "refresh=10"]


def moving(chi):
    return ";".join(straggle([chi if r == i % 4 else 1 for r in range(4)], 1 + i * MOVES, (i + 1) * MOVES)
                    for i in range(STEPS // MOVES))


SLOW = [("2", straggle([1, 2, 1, 1])), ("4", straggle([1, 4, 1, 1])), ("8", straggle([1, 8, 1, 1])),
        ("4 and 2", straggle([1, 4, 1, 2])), ("4, moving", moving(4))]
MODES = ["migrate", "resize", "semi"]


def loss_at_time(steps, evaluations, ms):
    """Validation loss when so much time has passed: between two evaluations, a straight line."""
    passed, clock = 0, {0: 0}
    for x in steps:
        passed += x["measured_ms"]
        clock[x["step"]] = passed
    before = None
    for e in evaluations:
        point = (clock[e["step"]], e["val_loss"])
        if point[0] >= ms and before:
            share = (ms - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]


def accuracy_row(args, slow, mode, name, options, budget):
    losses, times, same, left_out = [], [], [], []
    for seed in range(1, args.seeds + 1):
        steps, evaluations = run(args, f"loss-{name}-{seed}", 4, TEXT + ["--seed", str(seed)] + options)
        times.append(sum(x["measured_ms"] for x in steps))
        budget.setdefault(seed, times[-1])
        losses.append(evaluations[-1]["val_loss"])
        same.append(loss_at_time(steps, evaluations, budget[seed]))
        left_out.append(statistics.mean(max(x["ranks"]["gamma"]) for x in steps))
    cells = [f"{x:.4f}" for x in losses] + [f"{statistics.mean(times) / 1e3:.2f}"]
    return row([slow, mode] + cells + [f"{x:.4f}" for x in same] +
               [f"{statistics.mean(same):.4f}", f"{statistics.mean(left_out):.0%}"])


def accuracy_table(args):
    seeds = range(1, args.seeds + 1)
    lines = table(["slow by", "mode"] + [f"loss after {STEPS} steps, seed {s}" for s in seeds] + ["virtual s, mean"] +
                  [f"loss after the same time, seed {s}" for s in seeds] + ["mean", "left out of the slow rank"])
    budget = {}
    lines.append(accuracy_row(args, "-", "-", "healthy", [], budget))
    for i, (slow, spec) in enumerate(SLOW):
        for mode in MODES + args.more.split():
            options = ["--straggle", spec, "--balance", mode.split(":")[0]]
            if ":" in mode:
                options += ["--balance", "lambda=" + mode.split(":")[1]]
            lines.append(accuracy_row(args, slow, mode, f"{i}-{mode}", options, budget))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="./train")
    parser.add_argument("--parts", default="bound,several,accuracy")
    parser.add_argument("--work", default="build/stragglers")
    parser.add_argument("--data", default="/usr/include/linux")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--more", default="", help="more modes in the accuracy table: semi:LAMBDA ...")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    tables = {"bound": bound_table, "several": several_table, "accuracy": accuracy_table}
    for part in args.parts.split(","):
        print(f"\n## {part}\n\n" + "\n".join(tables[part](args)), flush=True)


if __name__ == "__main__":
    main()
