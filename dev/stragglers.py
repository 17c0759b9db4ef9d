#!/usr/bin/env python3
"""Slow ranks in a tensor-parallel group: what balancing wins, and what it costs in loss.

    dev/stragglers.py [--train ./train] [--parts bound,wall,accuracy] [--work DIR]

Runs ./train under mpirun with injected stragglers (an hour on two cores) and prints three tables, which
dev/results/stragglers.md explains:
  bound     R = 4 and 8 ranks, one of them 2, 4 or 8 times as slow in its matmuls. Ranks share this machine's cores, so
            times are emulated: every rank measures its own computing in processor time, and a step takes the sum over
            the segments between collectives of the slowest rank's (emulated_ms in log.jsonl), without communication.
  wall      R = 2 on two cores: what the clock says (measured_ms).
  accuracy  validation loss after the same steps and after the same emulated time, two seeds.
A run whose log is complete in DIR is not run again.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

MODES = ["migrate", "semi"]


def bound(chi, ranks):
    """The lossless bound: speed-up when all work is divided evenly by speed."""
    return chi * (ranks - 1 + 1 / chi) / ranks


def bound_ms(chi, ranks, healthy, off):
    """The same for a step of which only a part is slowed: m ms of matmuls, and c that can neither move nor shrink."""
    m = (off - healthy) / (chi - 1)
    return healthy - m + m * chi / bound(chi, ranks)


def run(args, name, ranks, options):
    """The log of a run: steps and evaluations."""
    out = os.path.join(args.work, name)
    wanted = int(options[options.index("--steps") + 1])
    if len(read(out)[0]) < wanted:
        shutil.rmtree(out, ignore_errors=True)
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), args.train, "--threads", "1",
                   "--tp", str(ranks), "--save-every", "0", "--sample-every", "0", "--out", out] + options
        environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(" ".join(command) + "\n" + done.stdout[-2000:])
        print("ran", name, file=sys.stderr, flush=True)
    return read(out)


def read(out):
    path = os.path.join(out, "log.jsonl")
    if not os.path.exists(path):
        return [], []
    lines = [json.loads(line) for line in open(path)]
    return [x for x in lines if "loss" in x], [x for x in lines if "val_loss" in x]


def least(steps, field, first, last):
    """Of the steps first .. last: a busy machine only adds."""
    return min(x[field] for x in steps if first <= x["step"] <= last)


SPEED = ["--dtype", "fp32", "--layers", "1", "--width", "768", "--heads", "16", "--context", "128", "--batch-tokens",
         "4096", "--eval-every", "0", "--refresh", "4", "--steps", "13", "--seed", "1"]


def table(columns):
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]


def row(cells):
    return "| " + " | ".join(cells) + " |"


def one_straggler(args, ranks, field):
    """A row for each chi and mode. The first 4 steps of a run are unbalanced: off and on are of the same run."""
    prefix = "wall" if ranks == 2 else "bound"
    healthy = least(run(args, f"{prefix}-{ranks}-healthy", ranks, SPEED)[0], field, 2, 13)
    lines = []
    for chi in (2, 4, 8):
        for mode in MODES:
            log, _ = run(args, f"{prefix}-{ranks}-{chi}-{mode}", ranks,
                         SPEED + ["--balance", mode, "--straggle", f"rank=1,x={chi}"])
            off, on, most = least(log, field, 2, 4), least(log, field, 9, 13), bound(chi, ranks)
            with_c = bound_ms(chi, ranks, healthy, off) / on
            lines.append(row([str(ranks), str(chi), mode, f"{healthy:.0f}", f"{off:.0f}", f"{on:.0f}",
                              f"{off / on:.2f}", f"{most:.2f}", f"{off / on / most:.0%}", f"{with_c:.0%}",
                              f"{(off - on) / (off - healthy):.0%}"]))
    return lines


COLUMNS = ["R", "chi", "mode", "ms healthy", "ms off", "ms on", "times faster", "bound", "of the bound",
           "of the bound with c", "slowdown removed"]


def bound_table(args):
    return table(COLUMNS) + one_straggler(args, 4, "emulated_ms") + one_straggler(args, 8, "emulated_ms")


def wall_table(args):
    return table(COLUMNS) + one_straggler(args, 2, "measured_ms")


STEPS = 300
TEXT = ["--dtype", "fp32", "--steps", str(STEPS), "--eval-every", "25", "--eval-tokens", "65536", "--refresh", "20"]
STRAGGLER = ["--straggle", "rank=1,x=4,from=2"]
RUNS = [
    ("no straggler", []),
    ("unmitigated", STRAGGLER),
    ("resize, priority", STRAGGLER + ["--balance", "resize"]),
    ("resize, random", STRAGGLER + ["--balance", "resize", "--experiment", "priority=random"]),
    ("resize, slices (our variant)", STRAGGLER + ["--balance", "resize", "--experiment", "shed=slices"]),
    ("migrate", STRAGGLER + ["--balance", "migrate"]),
    ("semi", STRAGGLER + ["--balance", "semi"]),
]


def loss_at_time(steps, evaluations, ms):
    """Validation loss when so much emulated time has passed: between two evaluations, a straight line."""
    passed, clock = 0, {0: 0}
    for x in steps:
        passed += x["emulated_ms"]
        clock[x["step"]] = passed
    before = None
    for e in evaluations:
        point = (clock[e["step"]], e["val_loss"])
        if point[0] >= ms and before:
            share = (ms - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1] if before and before[0] >= 0.98 * ms else None


def accuracy_table(args):
    lines = table(["setting", f"loss after {STEPS} steps, seed 1", "seed 2", "emulated s, seed 1", "seed 2",
                   "loss after the same time, seed 1", "seed 2", "left out of the slow rank"])
    budget = {}
    for number, (name, options) in enumerate(RUNS):
        found = {"loss": [], "time": [], "same": [], "gamma": []}
        for seed in (1, 2):
            steps, evaluations = run(args, f"accuracy-{number}-{seed}", 4, TEXT + options + ["--seed", str(seed)])
            total = sum(x["emulated_ms"] for x in steps)
            budget.setdefault(seed, total)
            same = loss_at_time(steps, evaluations, budget[seed])
            found["loss"].append(f"{evaluations[-1]['val_loss']:.4f}")
            found["time"].append(f"{total / 1e3:.1f}")
            found["same"].append("-" if same is None else f"{same:.4f}")
            found["gamma"].append(statistics.mean(max(x["ranks"]["gamma"]) for x in steps))
        lines.append(row([name] + found["loss"] + found["time"] + found["same"] +
                         [f"{statistics.mean(found['gamma']):.0%}"]))
    return lines


def where(parts):
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")][:1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return f"`dev/stragglers.py --parts {parts}`, {', '.join(model)}, {os.cpu_count()} cores, program of {commit}."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="./train")
    parser.add_argument("--parts", default="bound,wall,accuracy")
    parser.add_argument("--work", default="build/stragglers")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    tables = {"bound": bound_table, "wall": wall_table, "accuracy": accuracy_table}
    print(where(args.parts))
    for part in args.parts.split(","):
        print(f"\n## {part}\n\n" + "\n".join(tables[part](args)), flush=True)


if __name__ == "__main__":
    main()
