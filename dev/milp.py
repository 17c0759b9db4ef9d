#!/usr/bin/env python3
"""milp.py - the exact least makespan of a few documents, by mixed-integer programming, offline.

    python3 dev/milp.py                                          the instances of test_bound.c and test_flex.c
    python3 dev/milp.py --machine FILE --ranks 4 --lengths 16000,9000,5000 [--makespan 2240.1]
    python3 dev/milp.py --lengths ... --rounds 3                 in rounds, at most so many

A second answer beside the searches of test/settings.h and test/test_flex.c, from another method. Each document
runs once on a window of contiguous ranks that holds it. With u(k, r) = 1 where document k is on rank r, and
y(k, l) = 1 where k comes before l,

    start_l >= end_k  where  u(k, r) = u(l, r) = y(k, l) = 1         for every rank r (disjunctive, big M)
    sum of times on rank r <= makespan                               (not needed, but it makes the relaxation tight)

In rounds a rank takes part in at most one shared micro-batch and has one of its own beside it, of several documents
each. The ranks of a shared one wait for each other in the attention of documents beside it, and in the rest of their
work; nothing hides exchanges. With v(w, i) = 1 where window w is open in round i, over all ranks r of w:

    round_i >= time of shared documents on w + f v(w, i) + max over r of attention + max over r of the rest

FILE is in the format of plan/cost/machine.h with published links: quadratic_ms, linear_ms, micro_batch_ms, heads,
token_bytes, group, capacity. Solved by HiGHS (scipy 1.9 or later), else by GLPK's glpsol.
"""
import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile

MACHINES = {
    "a100-7b": """quadratic_ms 5.128e-6
linear_ms 0.1839576
capacity 6451
token_bytes 2097152
group 2 119.66
group 4 104.22""",
    "h200-8b": """quadratic_ms 2.13e-6
linear_ms 0.080
capacity 24576
token_bytes 1310720
group 2 372
group 4 324""",
}
GOLDEN = [
    ("a100-7b", [16000, 9000, 5000, 3000, 2000], 2231.928),
    ("a100-7b", [24000, 4000, 4000, 4000], 2631.495),
    ("a100-7b", [12000] * 3, 2374.965),
    ("a100-7b", [6000] * 5, 1640.626),
    ("h200-8b", [60000, 20000, 8000, 8000, 3000], 4263.810),
]
MACHINES["a100-7b-200"] = MACHINES["a100-7b"] + "\nmicro_batch_ms 200"
GOLDEN_ROUNDS = [
    ("a100-7b", [16000, 9000, 5000, 3000, 2000], 2257.562),
    ("a100-7b", [4300, 3600, 2400, 1700, 900, 800], 727.841),
    ("a100-7b", [15000, 5400, 4700, 3600, 3000, 1700, 1400, 1300], 2196.008),
    ("a100-7b", [8600, 7700, 7000, 5500, 4500, 4200, 2000, 1200], 2348.497),
    ("a100-7b-200", [24000, 6100, 3600, 3500, 3000, 2400], 3398.144),
    ("a100-7b-200", [22000, 21000, 4200, 2600, 2400, 1900, 1400, 1200], 4704.603),
    ("a100-7b-200", [11100, 7000, 6300, 6200, 5000, 2000, 1700, 1500, 900, 200], 2818.104),
    ("a100-7b-200", [12700, 3400, 3300, 3000, 2200, 1900, 1800, 1300, 1300, 700], 2200.491),
    ("h200-8b", [60000, 20000, 8000, 8000, 3000], 4280.989),
    ("h200-8b", [96000, 67200, 33200, 24400, 17600, 5600, 4800, 2000], 13672.510),
    ("h200-8b", [40400, 38000, 26000, 22000, 19200, 14000, 12000, 8800, 8800, 3600], 6741.835),
]
MOST_ROUNDS = 3  # of these


def parse_machine(text):
    machine = {"micro_batch_ms": 0.0, "heads": 0.0, "token_bytes": 0.0, "groups": []}
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "group":
            machine["groups"].append((int(words[1]), float(words[2])))
        elif words[0] == "link":
            sys.exit("milp.py: measured links are not known here, only published groups")
        elif words[0] != "name" and len(words) == 2:
            machine[words[0]] = float(words[1])
    missing = [key for key in ("quadratic_ms", "linear_ms", "capacity") if key not in machine]
    if missing:
        sys.exit(f"milp.py: the machine lacks {', '.join(missing)}")
    return machine


def terms_ms(machine, s, d):
    """Attention, and the rest, of a document of s tokens on d ranks, ms; None where the document does not fit."""
    heads = int(machine["heads"])
    most = -(-heads // d) if heads else 0  # heads of the rank that has most
    if heads and d > heads:
        return None
    room = machine["capacity"] * heads // most if heads else machine["capacity"] * d
    if s > room:
        return None
    uneven = most * d / heads if heads else 1.0
    rest = machine["linear_ms"] * s / d
    if d > 1 and machine["groups"]:
        gbps = next((g for degree, g in machine["groups"] if degree >= d), machine["groups"][-1][1])
        rest += machine["token_bytes"] * s / (d * gbps * 1e6)
    return machine["quadratic_ms"] * uneven * s * s / d, rest


def micro_batch_ms(machine, s, d):
    """Time of a document of s tokens alone on d ranks, ms; None where the document does not fit."""
    terms = terms_ms(machine, s, d)
    return sum(terms) + machine["micro_batch_ms"] if terms else None


class Model:
    """Minimise the first column; rows are (coefficients by column, lower, upper)."""

    def __init__(self):
        self.integer, self.upper, self.rows = [], [], []

    def column(self, upper=None, integer=False):
        self.integer.append(integer)
        self.upper.append(upper)
        return len(self.upper) - 1

    def at_least(self, terms, value):
        self.rows.append((terms, value, None))

    def equal(self, terms, value):
        self.rows.append((terms, value, value))


def build(machine, ranks, lengths):
    model = Model()
    makespan = model.column()
    windows = [(first, d) for d in range(1, ranks + 1) for first in range(ranks - d + 1)]
    ms = [{w: micro_batch_ms(machine, s, w[1]) for w in windows} for s in lengths]
    ms = [{w: t for w, t in row.items() if t is not None} for row in ms]
    for s, row in zip(lengths, ms):
        if not row:
            sys.exit(f"milp.py: no group of {ranks} ranks holds {s} tokens")
    big = sum(min(row.values()) for row in ms)  # one after the other is a schedule
    start = [model.column(big) for _ in lengths]
    on = [{w: model.column(1, True) for w in row} for row in ms]
    for row in on:
        model.equal({column: 1 for column in row.values()}, 1)

    def time_of(k, sign, rank=None):
        return {on[k][w]: sign * ms[k][w] for w in on[k] if rank is None or w[0] <= rank < w[0] + w[1]}

    def uses(k, rank):
        return {on[k][w]: -2 * big for w in on[k] if w[0] <= rank < w[0] + w[1]}

    for k in range(len(lengths)):
        model.at_least({makespan: 1, start[k]: -1, **time_of(k, -1)}, 0)
    for r in range(ranks):
        model.at_least({makespan: 1, **{c: v for k in range(len(lengths)) for c, v in time_of(k, -1, r).items()}}, 0)
    for k, l in itertools.combinations(range(len(lengths)), 2):
        before = model.column(1, True)
        if lengths[k] == lengths[l]:  # equal documents start in the order of the list
            model.at_least({start[l]: 1, start[k]: -1}, 0)
        for r in range(ranks):
            for a, b, y, free in ((k, l, -2 * big, 6 * big), (l, k, 2 * big, 4 * big)):
                # start_b - end_a >= -2 big (0 where both are on r in this order)
                terms = {start[b]: 1, start[a]: -1, before: y}
                for part in (time_of(a, -1), uses(a, r), uses(b, r)):
                    for column, value in part.items():
                        terms[column] = terms.get(column, 0) + value
                model.at_least(terms, -free)
    return model


def build_rounds(machine, ranks, lengths, rounds):
    """At most so many rounds, of several documents in a micro-batch: the sum of their times."""
    if machine["heads"]:
        sys.exit("milp.py: --rounds expects heads 0, so that every group divides them evenly")
    model = Model()
    total = model.column()
    windows = [(first, d) for d in range(1, ranks + 1) for first in range(ranks - d + 1)]
    terms = {(s, d): terms_ms(machine, s, d) for s in lengths for d in range(1, ranks + 1)}
    capacity, own = machine["capacity"], machine["micro_batch_ms"]
    on = [{} for _ in lengths]  # by window and round
    for k, s in enumerate(lengths):
        for w, i in itertools.product(windows, range(rounds)):
            if terms[s, w[1]]:
                on[k][w, i] = model.column(1, True)
        if not on[k]:
            sys.exit(f"milp.py: no group of {ranks} ranks holds {s} tokens")
        model.equal({column: 1 for column in on[k].values()}, 1)
    most = sum(sum(terms[s, ranks]) + own for s in lengths)  # all ranks together, one after another, is a schedule

    def sums(w, i, weight, sign=-1):
        return {on[k][w, i]: sign * weight(s) for k, s in enumerate(lengths) if (w, i) in on[k]}

    takes = [model.column(most) for _ in range(rounds)]
    model.equal({total: 1, **{t: -1 for t in takes}}, 0)
    for i in range(rounds):
        if i:
            model.at_least({takes[i - 1]: 1, takes[i]: -1}, 0)  # rounds in any order are as good
        open_ = {w: model.column(1, True) for w in windows}
        for w in windows:
            first, d = w
            model.at_least({open_[w]: capacity * d, **sums(w, i, lambda s: s)}, 0)
            row = {takes[i]: 1, open_[w]: -own, **sums(w, i, lambda s: sum(terms[s, d]))}
            if d == 1:
                model.at_least(row, 0)
                continue
            for part in (0, 1):  # the most of local attention, and of the rest, on a rank of the window
                longest = model.column(most)
                row[longest] = -1
                for r in range(first, first + d):
                    model.at_least({longest: 1, open_[w]: -most, **sums((r, 1), i, lambda s: terms[s, 1][part])}, -most)
            model.at_least(row, 0)
            for r in range(first, first + d):  # room of a rank for both, to a token
                model.at_least({open_[w]: -capacity, **sums(w, i, lambda s: s / d), **sums((r, 1), i, lambda s: s)},
                               -2 * capacity - 1)
        for r in range(ranks):
            model.at_least({open_[w]: -1 for w in windows if w[1] > 1 and w[0] <= r < w[0] + w[1]}, -1)
    return model


def solve_highs(model, seconds):
    import numpy
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import lil_matrix

    matrix = lil_matrix((len(model.rows), len(model.upper)))
    for i, (terms, _, _) in enumerate(model.rows):
        for column, value in terms.items():
            matrix[i, column] = value
    lower = [row[1] for row in model.rows]
    upper = [numpy.inf if row[2] is None else row[2] for row in model.rows]
    cost = numpy.zeros(len(model.upper))
    cost[0] = 1
    limits = Bounds(0, [numpy.inf if u is None else u for u in model.upper])
    result = milp(cost, constraints=LinearConstraint(matrix.tocsr(), lower, upper), bounds=limits,
                  integrality=[int(i) for i in model.integer],
                  options={"time_limit": seconds, "mip_rel_gap": 1e-9})
    if result.x is None:
        return None, False
    return result.fun, result.status == 0


def solve_glpk(model, seconds):
    """Through a file in CPLEX's LP format."""
    lines = ["Minimize", " c0", "Subject To"]
    for terms, lower, upper in model.rows:
        left = " ".join(f"{value:+.17g} c{column}" for column, value in terms.items())
        lines.append(f" {left} {'=' if upper is not None else '>='} {lower:.17g}")
    lines.append("Bounds")
    lines += [f" 0 <= c{i} <= {u:.17g}" for i, u in enumerate(model.upper) if u is not None]
    lines += ["General", " " + " ".join(f"c{i}" for i, integer in enumerate(model.integer) if integer), "End"]
    with tempfile.TemporaryDirectory() as scratch:
        problem, answer = os.path.join(scratch, "problem.lp"), os.path.join(scratch, "answer.txt")
        with open(problem, "w") as f:
            f.write("\n".join(lines) + "\n")
        subprocess.run(["glpsol", "--lp", problem, "-w", answer, "--tmlim", str(int(seconds))], check=True,
                       stdout=subprocess.DEVNULL)
        with open(answer) as f:
            words = next(line.split() for line in f if line.startswith("s "))
    return (float(words[-1]), words[-2] == "o") if words[-2] in "of" else (None, False)


def pick_solver():
    try:
        from scipy.optimize import milp  # noqa: F401
        return "HiGHS", solve_highs
    except ImportError:
        pass
    if shutil.which("glpsol"):
        return "GLPK", solve_glpk
    sys.exit("milp.py: neither scipy 1.9 (pip install scipy) nor glpsol (apt-get install glpk-utils) is installed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machine", default="a100-7b", help="a machine file, a100-7b or h200-8b")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--lengths", help="with commas; without: the known instances")
    parser.add_argument("--rounds", type=int, help="at most so many; without: ranks run freely")
    parser.add_argument("--makespan", type=float, help="of a plan, ms: to be compared")
    parser.add_argument("--seconds", type=float, default=60, help="the solver's limit for an instance")
    args = parser.parse_args()
    name, solve = pick_solver()
    print(f"solver {name}")
    if args.lengths:
        lengths = sorted((int(s) for s in args.lengths.split(",")), reverse=True)
        cases = [(args.machine, lengths, args.makespan, args.rounds)]
    else:
        cases = [(*case, None) for case in GOLDEN] + [(*case, MOST_ROUNDS) for case in GOLDEN_ROUNDS]
    wrong = 0
    for machine, lengths, known, rounds in cases:
        text = MACHINES.get(machine)
        if text is None:
            with open(machine) as f:
                text = f.read()
        problem = parse_machine(text)
        best, proven = solve(build_rounds(problem, args.ranks, lengths, rounds) if rounds else
                             build(problem, args.ranks, lengths), args.seconds)
        line = f"{os.path.basename(machine)}, {args.ranks} ranks, {' '.join(map(str, lengths))}"
        line += f", {rounds} rounds at most: " if rounds else ": "
        line += "nothing found in time" if best is None else f"{best:.3f} ms{'' if proven else ', not proven'}"
        if known is not None and best is not None:
            line += f"; {'the plan' if args.lengths else 'known'} {known:.3f}, {100 * (known / best - 1):+.3f} %"
            wrong += known < best - 0.001 if args.lengths else abs(known - best) > 0.001
        print(line, flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
