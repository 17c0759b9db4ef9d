#!/usr/bin/env python3
"""What papers say beside what the cost model says (dev/results/papers.md); nothing here runs on a GPU.

    dev/papers.py flexsp      FlexSP's table: time over FlexSP's, 64 ranks, 512 documents, 20 steps
    dev/papers.py zeppelin    Zeppelin's ladder, 64 ranks, 256 documents of up to 64K tokens, 10 steps

Needs build/simulate (make simulate).
"""
import json, os, subprocess, sys, tempfile

SIMULATE = "build/simulate"

# FlexSP, table of iteration seconds: DeepSpeed, Megatron-LM, BatchAda, FlexSP (Wang et al. 2025, section 6.2)
FLEXSP = {
    ("7b", "github", 192): (28.5, 28.2, 26.6, 19.8), ("7b", "wikipedia", 192): (8.1, 9.2, 6.0, 4.8),
    ("13b", "github", 192): (47.8, 47.0, 44.2, 34.4), ("13b", "wikipedia", 192): (13.9, 15.8, 10.6, 8.7),
    ("30b", "github", 192): (120, 120.5, 114, 83), ("30b", "wikipedia", 192): (29, 34.8, 23.8, 17.6),
    ("7b", "github", 384): (32.2, 37.4, 31.2, 25.5), ("7b", "wikipedia", 384): (8.2, 9.8, 6.1, 5.6),
    ("13b", "github", 384): (54.1, 68.3, 50.9, 41.8), ("13b", "wikipedia", 384): (14.7, 18.3, 12.1, 10.5),
    ("30b", "github", 384): (133, 153, 130, 109), ("30b", "wikipedia", 384): (32.4, 40, 27.6, 21),
}
# Tokens that a rank holds beside states of ZeRO-3, by the context: learned positions are parameters, too.
HELD = {("7b", 192): 6449, ("13b", 192): 6483, ("30b", 192): 6627,
        ("7b", 384): 6407, ("13b", 384): 6427, ("30b", 384): 6538}
SHAPE = {"7b": (32, 4096), "13b": (40, 5120), "30b": (60, 6656)}
TENSOR = (1, 2, 4, 8, 16)


def simulate(**options):
    """ms a step of each planner that has plans, by its name."""
    words = [SIMULATE, "--json"]
    for name, value in options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode and "no planner played" not in done.stderr:
        sys.exit(done.stderr)
    return {row["plan"]: row["mean_ms"] for row in map(json.loads, done.stdout.splitlines())}


def best(rows, ms):
    """The least of rows over ms, and its tensor-parallel ranks."""
    if not rows:
        return "none fits"
    name = min(rows, key=rows.get)
    return f"{rows[name] / ms:.2f} ({name[2:-3]})"


def flexsp():
    print("| model | lengths | context | DeepSpeed / FlexSP: paper | here | with rings | BatchAda / FlexSP: paper "
          "| here | with rings | Megatron-LM / FlexSP: paper | here (TP) | with the memory of ZeRO-3 | FlexSP / flex "
          "| FlexSP, s: paper | here |")
    print("|" + "---|" * 15)
    for (model, lengths, context), seconds in FLEXSP.items():
        layers, width = SHAPE[model]
        known = dict(machine="flexsp-" + model, lengths=lengths, context=context * 1024, overlap="no", docs=512,
                     batches=20)
        held = dict(capacity=HELD[model, context])
        ours = simulate(plans="deepspeed,batchada,static,adaptive,flexsp,flex", **known, **held)
        tensor = dict(plans=",".join(f"tp{t}-cp" for t in TENSOR), **known,
                      model=f"--arch gpt2 --layers {layers} --width {width} --heads 64 --context {context * 1024}")
        of = lambda name: f"{ours[name] / ours['flexsp']:.2f}"
        paper = lambda i: f"{seconds[i] / seconds[3]:.2f}"
        print(f"| {model} | {lengths} | {context}K | {paper(0)} | {of('deepspeed')} | {of('static')} | {paper(2)} "
              f"| {of('batchada')} | {of('adaptive')} | {paper(1)} | {best(simulate(**tensor), ours['flexsp'])} "
              f"| {best(simulate(**tensor, **held), ours['flexsp'])} | {ours['flexsp'] / ours['flex']:.2f} "
              f"| {seconds[3]} | {ours['flexsp'] / 1e3:.1f} |", flush=True)


# The machines of the cost model; a100-4nics is a100-7b whose nodes have four NICs, as Zeppelin's cluster A.
A100 = ("name a100-4nics\nquadratic_ms 5.128e-6; linear_ms 0.1839576; heads 0; capacity 6451; token_bytes 2097152; "
        "node 8; nics 4\ngroup 2 119.66; group 4 104.22; group 8 96.5; group 16 10.33; group 32 5.94; group 64 4.87\n")


def zeppelin():
    with tempfile.TemporaryDirectory() as work:
        four = os.path.join(work, "a100-4nics")
        open(four, "w").write(A100)
        print("| machine | lengths | ring of all ranks | KV gather of least cp | ring of least cp | + routing "
              "| partition | both | both + remapping | of all ranks | of least cp "
              "| routing alone | remapping alone | flex |")
        print("|" + "---|" * 14)
        for machine in ("a100-7b", four, "h200-8b"):
            for lengths in ("prolong", "github", "arxiv"):
                known = dict(machine=machine, lengths=lengths, context=65536, docs=256, batches=10, zero=1,
                             overlap="yes")
                bare = simulate(plans="te-cp,te-cp-all,kv-gather,zeppelin,flex", **known)
                routed = simulate(plans="te-cp,te-cp-all,zeppelin", route="yes", **known)
                both = simulate(plans="zeppelin", route="yes", remap="yes", **known)
                last = both["zeppelin"]
                cells = [bare["te-cp-all"], bare["kv-gather"], bare["te-cp"], routed["te-cp"], bare["zeppelin"],
                         routed["zeppelin"], last]
                ratios = [bare["te-cp-all"] / last, bare["te-cp"] / last, bare["te-cp"] / routed["te-cp"],
                          routed["zeppelin"] / last]
                print(f"| {os.path.basename(machine)} | {lengths} | " + " | ".join(f"{x:.0f}" for x in cells) + " | " +
                      " | ".join(f"{x:.2f}" for x in ratios) + f" | {bare['flex']:.0f} |", flush=True)


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in ("flexsp", "zeppelin"):
        sys.exit(__doc__)
    globals()[sys.argv[1]]()


main()
