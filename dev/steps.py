#!/usr/bin/env python3
"""Whole steps under every planner, played by virtual ranks (dev/results/steps.md).

    dev/steps.py [--machines a100-7b,h200-8b,h100-400g] [--lengths wikipedia,...|FILE.jsonl] [--zero 1,2,3]
                 [--contexts 32768,131072] [--plans flex,...] [--steps 5] [--tokens 1048576] [--ranks 64] [--json FILE]

A cell is a machine, a stage of ZeRO, lengths and a context. Rows of the table are cells, the one where flex is worst
first: ms of a step under flex, in the mean; under the best of the others, and how many times as long; how far what was
predicted of flex' steps was off at most. `rollouts` are trees: prompts with 8 or 16 answers. h100-400g is below: H100
with a NIC of 400 Gbit/s each, estimated.

Needs ./train and build/release/dev/draw_corpus (make build/release/dev/draw_corpus).
"""
import argparse, json, os, subprocess, sys, tempfile

H100 = """name h100-400g
# 8B on H100: half of the peak; NVLink of 450 GB/s each way, a NIC of 400 Gbit/s a GPU at nine tenths.
quadratic_ms 2.4e-6; linear_ms 0.095; capacity 16384; micro_batch_ms 2
link inside 0 0.02; link inside 1000000000 2.24
link across 0 0.03; link across 1000000000 22.25
model 32 4096 2; kv_channels 1024
"""
OTHERS = "flexsp,hydraulis,zeppelin,adaptive,static,megatron"

p = argparse.ArgumentParser()
p.add_argument("--machines", default="a100-7b,h200-8b,h100-400g")
p.add_argument("--lengths", default="wikipedia,prolong,github,sft,arxiv,rollouts")
p.add_argument("--zero", default="1,2,3")
p.add_argument("--contexts", default="32768,131072")
p.add_argument("--plans", default="flex," + OTHERS)
p.add_argument("--steps", type=int, default=5)
p.add_argument("--tokens", type=int, default=1 << 20)
p.add_argument("--ranks", type=int, default=64)
p.add_argument("--preset", default="llama-3.1-8b")
p.add_argument("--jobs", type=int, default=2)
p.add_argument("--json", help="a line for each run is appended here")
a = p.parse_args()
work = tempfile.mkdtemp(prefix="steps-")


def corpus(name, context):
    """The path of documents of these lengths, enough for all steps."""
    path = f"{work}/{name}-{context}{'-trees' if name == 'rollouts' else ''}.jsonl"
    if os.path.exists(name):
        return name
    if os.path.exists(path):
        return path
    if name == "rollouts":
        subprocess.run(["dev/rollouts.py", f"{work}/{name}-{context}", "--prompts", str(a.tokens // 2500), "--most",
                        str(context // 4), "--prompt", "1024", "--median", "600"], check=True,
                       stdout=subprocess.DEVNULL)
        return path
    have, n = 0, 2048
    while have < (a.steps + 1) * a.tokens:  # bytes are tokens
        text = subprocess.run(["build/release/dev/draw_corpus", name, str(n), str(context)], check=True,
                              capture_output=True).stdout
        have, n = len(text), n * 2
    open(path, "wb").write(text)
    return path


def machine(name):
    if name != "h100-400g":
        return name
    path = f"{work}/{name}.txt"
    open(path, "w").write(H100)
    return path


def begin(cell, plan):
    m, zero, lengths, context = cell
    out = tempfile.mkdtemp(dir=work)
    data = corpus(lengths, context)
    words = ["./train", "--ranks", str(a.ranks), "--device", "virtual", "--machine", machine(m), "--data", data,
             "--val", data, "--preset", a.preset, "--vocab", "128256", "--context", str(context), "--batch-tokens",
             str(a.tokens), "--steps", str(a.steps), "--zero", zero, "--plan", plan, "--out", out + "/run"]
    log = open(out + "/said", "w")
    return subprocess.Popen(words, stdout=log, stderr=log), out


def read(process, out):
    """Mean ms, and how far predictions were off at most; None where the planner has no plan."""
    if process.wait():
        return None
    steps = [json.loads(l) for l in open(out + "/run/log.jsonl") if '"measured_ms"' in l]
    off = max(abs(s["predicted_ms"] / s["measured_ms"] - 1) for s in steps)
    us = sum(s["plan_us"] for s in steps) / len(steps)
    return {"ms": sum(s["measured_ms"] for s in steps) / len(steps), "off": off, "plan_us": us}


cells = [(m, z, l, int(c)) for m in a.machines.split(",") for z in a.zero.split(",") for l in a.lengths.split(",")
         for c in a.contexts.split(",")]
found, waiting, running = {}, [(c, plan) for c in cells for plan in a.plans.split(",")], []
while waiting or running:
    while waiting and len(running) < a.jobs:
        running.append((*waiting[0], *begin(*waiting.pop(0))))
    cell, plan, process, out = running.pop(0)
    result = read(process, out)
    subprocess.run(["rm", "-rf", out])
    if a.json:
        open(a.json, "a").write(json.dumps({"cell": cell, "plan": plan, "found": result}) + "\n")
    if result:
        found[cell, plan] = result

rows = []
for cell in cells:
    flex = found.get((cell, "flex"))
    others = [(found[cell, x]["ms"], x) for x in a.plans.split(",") if x != "flex" and (cell, x) in found]
    if flex and others:
        rows.append((min(others)[0] / flex["ms"], cell, flex, min(others)))
print("| machine | ZeRO | lengths | context | flex, ms | best other, ms | | times | predicted off by |")
print("|---|---|---|---|---|---|---|---|---|")
for ratio, (m, z, l, c), flex, (ms, name) in sorted(rows):
    print(f"| {m} | {z} | {os.path.basename(l)} | {c // 1024} K | {flex['ms']:.0f} | {ms:.0f} | {name} | {ratio:.3f} | "
          f"{100 * flex['off']:.2f} % |")
if rows:
    print(f"\nmedian of {len(rows)} cells: {sorted(rows)[len(rows) // 2][0]:.3f}")
subprocess.run(["rm", "-rf", work])
