#!/usr/bin/env python3
"""Runs the examples of the documents whose digits repeat, and compares the digits.

    make check-examples

An example is a block or the rows of tables in a document, and the command that makes them. What the document shows must
be what the command prints, word by word; "..." stands for what is left out, and times of planning, which no two runs
share, are not compared. What was measured (speeds, losses on the headers of a machine) is not here: nothing could be
compared. The last line is "N passed, N failed", or with what is missing here "N passed, N failed, N skipped".
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple

# words: how the block in `section` begins, or "|": all rows of its tables. without: what is not compared.
Example = namedtuple("Example", "name document section words command without needs")

EXAMPLES = [
    Example("explain", "plan/README.md", "## A step, drawn", "flex: step 1: 10 documents",
            "mpirun --oversubscribe -n 4 build/release/train --explain --data {work}/ten.jsonl --val {work}/ten.jsonl "
            "--machine a100-7b --capacity 6451 --context 9000 --batch-tokens 27000 --out {work}/run",
            r"\b\d+ us\b", "mpirun"),
    Example("picture", "plan/README.md", "## The picture", "plan ",
            "TRAIN=$PWD/build/release/train dev/picture.sh {work}", r"\b\d+ us\b", None),
    Example("simulate", "plan/README.md", "## The simulator", "predicted, ms",
            "build/release/dev/simulate --batches 4", r"(?<=\.\d\d) \d+ \d+(?= \d+\.\d \d+\.\d \d+\.\d)", None),
    Example("bench_plan", "dev/results/planning.md", "## How long planning takes, how close it comes",
            "flex, 100 batches a cell", "build/release/dev/bench_plan 64",
            r"(?<=\.\d\d) \d+ (\(\d+\) )?\d+ \d+( <-)?$", None),
    Example("ladder", "dev/results/strategies.md", "## In the cost model", "|", "build/release/dev/ladder", None, None),
    Example("stragglers", "dev/results/stragglers.md", "## bound", "|",
            "python3 dev/stragglers.py --train build/release/train --parts bound --work {work}", None, "mpirun"),
    Example("several stragglers", "dev/results/stragglers.md", "## several", "|",
            "python3 dev/stragglers.py --train build/release/train --parts several --work {work}", None, "mpirun"),
    Example("trees", "dev/results/trees.md", "## 64 ranks, virtual", "|",
            "grep '^| machine' dev/results/trees.md; for s in 1 2 3; do "
            "dev/rollouts.py {work}/r --prompts 128 --most 7000 --seed $s --play h200-8b --cost 2.13e-6,0.080 && "
            "dev/rollouts.py {work}/r --prompts 64 --most 7000 --seed $s --play a100-7b --cost 5.128e-6,0.1839576; "
            "done",
            None, None),
]


def shown(example):
    """The lines that the document shows: of a block, indented by four; or rows of tables."""
    _, _, behind = open(example.document).read().partition(f"\n{example.section}\n")
    section = behind.partition("\n## ")[0]
    if example.words == "|":
        return [line for line in section.split("\n") if re.match(r"\|[^-]", line)]
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.M):
        if block.strip().startswith(example.words):
            return [line[4:] for line in block.split("\n") if line.strip()]
    return []


def plain(line, without):
    """A line's words, one space apart."""
    line = " ".join(line.split())
    return " ".join(re.sub(without, "", line).split()) if without else line


def differences(example, printed):
    """Lines of the document that were not printed."""
    there = [plain(line, example.without) for line in printed.split("\n")]
    if example.name == "bench_plan":  # the page has the cells of all ranks
        return [x for x in there if x and x not in map(lambda y: plain(y, example.without), shown(example))]
    missing = []
    for line in shown(example):
        wanted = plain(line, example.without)
        start = wanted[:-3].rstrip() if wanted.endswith("...") else None
        if not (any(x.startswith(start) for x in there) if start is not None else wanted in there):
            missing.append(line)
    return missing


def told(example, printed):
    """What sentences and drawings say of the steps that are drawn, in whole ms: (document, words) pairs."""
    def number(pattern):
        return round(float(re.search(pattern, printed).group(1)))
    if example.name not in ("explain", "picture"):
        return []
    ms, least, static = number(r"makespan ([0-9.]+)"), number(r"at least ([0-9.]+)"), number(r"static +([0-9.]+)")
    if example.name == "explain":
        return [(example.document, f"would take {static} ms here, and the proven lower bound is {least} ms"),
                (example.document, f" 1178 {ms} 9000 #")]
    flexsp = number(r"flexsp +([0-9.]+)")
    return [("README.md", f"takes {ms} ms, with one cp size for all documents {static} ms, FlexSP's {flexsp} ms"),
            ("README.md", f"lower bound is {least} ms")]


def main():
    passed = failed = skipped = 0
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    for example in EXAMPLES:
        if example.needs and not shutil.which(example.needs):
            print(f"skipped {example.name}: no {example.needs}")
            skipped += 1
            continue
        with tempfile.TemporaryDirectory() as work:
            with open(f"{work}/ten.jsonl", "w") as out:  # an end-of-text token precedes each
                for n in (9000, 4000, 3500, 2600, 2400, 2000, 1500, 1000, 700, 300):
                    out.write('{"text": "%s"}\n' % ("a" * (n - 1)))
            run = subprocess.run(example.command.format(work=work), shell=True, env=environment, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wrong = [f"status {run.returncode}: {run.stderr[-300:]}"] if run.returncode else []
        if not shown(example):
            wrong.append(f'no "{example.words}" in section "{example.section}"')
        wrong += differences(example, run.stdout)
        if not wrong:
            wrong += [f"{document}: {words}" for document, words in told(example, run.stdout)
                      if words not in " ".join(open(document).read().split())]
        print(f"{'FAILED' if wrong else 'passed'} {example.name}: {example.document}")
        for line in wrong:
            print(f"    the document and `{example.command}` differ: {line.strip()}")
        passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return failed > 0


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())
