"""Hydraulis' steps one after another, executed by the trainer on 64 virtual ranks with the constants that it published.

    make CUDA=no && python3 dev/ladder.py [--machine hydraulis-32b] [--ranks 64] [--steps 20]

Documents have log-normal lengths, one byte a token. Every row of the table is a run of the trainer: what it says is the
time of its clocks, mean of all steps. The time that it predicted stands beside it. Lists are those that
`build/release/dev/ladder` prints.
"""
import argparse
import json
import math
import os
import random
import subprocess
import tempfile

# What was published for 32B; of it what the constants of 7B have times for.
PUBLISHED = {
    "hydraulis-32b": "4xtp16; tp16+2xtp8pp3; tp16+6xtp8; tp16+12xtp4; tp8pp3+10xtp4; tp8+14xtp4; 8xtp4pp2",
    "hydraulis-7b": "4xtp16; tp16+6xtp8; tp16+12xtp4; tp8+14xtp4",
}
LENGTHS = {  # median, sigma, best single strategy, searched list
    "hydraulis-32b": [
        (600, 1.1, "tp16+12xtp4",
         "tp16+3xtp8+6xtp4; 2xtp8+12xtp4; tp16+12xtp4; 5xtp8+6xtp4; tp16+5xtp8+2xtp2pp2; tp8+14xtp4; 3xtp8+10xtp4"),
        (600, 1.4, "tp16+4xtp8+4xtp4",
         "2xtp16+3xtp8+2xtp4; tp16+4xtp8+4xtp4; 5xtp8+6xtp4; 3xtp16+2xtp8; 7xtp8+tp4+tp2pp2; "
         "2xtp16+3xtp8+tp4+tp2pp2"),
        (900, 1.6, "2xtp16+4xtp8",
         "3xtp16+tp8+2xtp4; tp16+5xtp8+2xtp4; 2xtp16+4xtp8; 4xtp16; 6xtp8+3xtp4+tp2pp2; 2xtp16+tp8+4xtp4+2xtp2pp2"),
    ],
    "hydraulis-7b": [
        (600, 1.1, "4xtp8+8xtp4",
         "4xtp8+8xtp4; tp16+2xtp8+7xtp4+2xtp1pp2; tp8+14xtp4; 2xtp16+2xtp8+4xtp4; 3xtp8+8xtp4+4xtp1pp2; "
         "15xtp4+2xtp1pp2; tp16+4xtp8+4xtp4"),
        (600, 1.4, "tp16+4xtp8+4xtp4",
         "tp16+4xtp8+4xtp4; 2xtp16+3xtp8+2xtp4; 6xtp8+4xtp4; tp8+14xtp4; 3xtp16+tp8+2xtp4; 7xtp8+4xtp1pp2; "
         "2xtp16+tp8+6xtp4"),
        (900, 1.6, "2xtp16+4xtp8",
         "2xtp16+4xtp8; 7xtp8+2xtp4; 3xtp16+4xtp4; tp16+5xtp8+2xtp4; 3xtp16+tp8+2xtp4"),
    ],
}
LONGEST = 32767


def write_corpus(path, median, sigma, tokens):
    draw = random.Random(1)
    with open(path, "w") as out:
        while tokens > 0:
            n = int(min(max(median * math.exp(sigma * draw.gauss(0, 1)), 16), LONGEST))
            out.write(json.dumps({"text": "a" * n}) + "\n")
            tokens -= n


def run(args, corpus, strategies, options):
    with tempfile.TemporaryDirectory() as out:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(args.ranks), args.train, "--device",
                   "virtual", "--machine", args.machine, "--layers", "12", "--width", "1024", "--heads", "32",
                   "--data", corpus, "--context", "32768", "--batch-tokens", "200000", "--steps", str(args.steps),
                   "--threads", "1", "--strategies", strategies, "--out", os.path.join(out, "run"), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise SystemExit(f"{strategies}: {done.stderr[:500]}")
        with open(os.path.join(out, "run", "log.jsonl")) as log:
            steps = [line for line in map(json.loads, log) if "measured_ms" in line and "event" not in line]
    chosen = {line["strategy"] for line in steps}
    keys = ("measured_ms", "predicted_ms", "moving_ms")
    return [sum(line[key] for line in steps) / len(steps) for key in keys] + [len(chosen)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="hydraulis-32b", help="or hydraulis-7b; with -links, assumed links")
    parser.add_argument("--rungs", type=int, nargs="*", help="numbers from 0; all where left out")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--train", default="./train")
    args = parser.parse_args()
    model = args.machine.removesuffix("-links")
    print("| lengths | strategies | measured | predicted | of it moving | times as fast | chosen |")
    print("|---|---|---|---|---|---|---|")
    for median, sigma, single, searched in LENGTHS[model]:
        with tempfile.TemporaryDirectory() as folder:
            corpus = os.path.join(folder, "documents.jsonl")
            write_corpus(corpus, median, sigma, 220000 * (args.steps + 4))
            rungs = [("4 x TP16, fixed", "4xtp16", ["--plan", "fixed"]),
                     ("4 x TP16, even tokens", "4xtp16", ["--plan", "static"]), ("4 x TP16", "4xtp16", []),
                     (f"best single, {single}", single, []), ("published list", PUBLISHED[model], []),
                     ("searched list", searched, [])]
            first = None
            for i, (name, strategies, options) in enumerate(rungs):
                if args.rungs and i not in args.rungs:
                    continue
                measured, predicted, moving, chosen = run(args, corpus, strategies, options)
                first = first or measured
                print(f"| median {median}, sigma {sigma} | {name} | {measured:.1f} | {predicted:.1f} | {moving:.1f} | "
                      f"{first / measured:.2f} | {chosen} |", flush=True)


if __name__ == "__main__":
    main()
