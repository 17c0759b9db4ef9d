#!/usr/bin/env python3
"""Layouts found by the search against ways with one idea, and against the virtual cluster (dev/results/layouts.md).

    dev/layouts.py table yes|no     every machine, model, budget and number of ranks in the cost model (build/simulate)
    dev/layouts.py play yes|no      layouts that were found, played by ./train --device virtual
    dev/layouts.py lengths yes|no   documents of many lengths, 64 ranks: what is found by the steps, by the mean length,
                                    and by the best single way in the cost model
    dev/layouts.py ragged yes|no    some of these, played on 64 virtual ranks
    dev/layouts.py search yes|no    all of these: the answer of the search, the choice by mean length, the best single
                                    way, lists of strategies alone; each found, and played on 64 virtual ranks. What was
                                    played is kept in build/played.jsonl, so that a stop loses nothing
    dev/layouts.py cpu no           4 ranks of this machine: predicted and measured processor time of computing
    dev/layouts.py clock no         2 ranks of this machine: predicted and measured times of steps by the clock

yes: communication goes on under computing (--overlap yes).

Machines are made here of constants that others measured or published; `machine` below says which.
"""
import json, os, re, statistics, subprocess, sys, tempfile

# layers, width, matmul weights of a layer, vocabulary, context, options of the model
MODELS = {
    "bert-huge": (32, 1280, 12 * 1280**2, 30522, 512,
                  "--layers 32 --width 1280 --heads 20 --vocab 30522 --context 512"),
    "gpt2-1.5b": (48, 1600, 12 * 1600**2, 50257, 1024, "--preset gpt2-1558m --vocab 50257 --context 1024"),
    "llama-7b": (32, 4096, 4 * 4096**2 + 3 * 4096 * 11008, 32000, 2048,
                 "--arch llama --layers 32 --width 4096 --heads 32 --arch hidden=11008,tie=no --vocab 32000 "
                 "--context 2048"),
    # Equal layers, but a classifier as large as ten of them: stages of equal time have unlike numbers of layers.
    "uneven": (24, 1024, 12 * 1024**2, 128256, 1024,
               "--layers 24 --width 1024 --heads 16 --arch tie=no --vocab 128256 --context 1024"),
}
LONGEST, TOKENS = 32768, 1 << 20
LENGTHS = ("wikipedia", "prolong", "github", "sft")
PLAYED = [("llama-7b", 40, "prolong"), ("llama-7b", 40, "sft"), ("llama-13b", 60, "prolong"),
          ("llama-32b", 80, "github")]
MODELS.update({
    "llama-13b": (40, 5120, 4 * 5120**2 + 3 * 5120 * 13824, 32000, 2048,
                  "--arch llama --layers 40 --width 5120 --heads 40 --arch hidden=13824,tie=no --vocab 32000 "
                  "--context 2048"),
    "llama-32b": (60, 6656, 4 * 6656**2 + 3 * 6656 * 17920, 32000, 2048,
                  "--arch llama --layers 60 --width 6656 --heads 52 --arch hidden=17920,tie=no --vocab 32000 "
                  "--context 2048"),
})
SMALL = ("bert-huge", "gpt2-1.5b", "llama-7b", "uneven")
CELLS = [("llama-7b", 20), ("llama-7b", 40), ("llama-13b", 30), ("llama-13b", 60), ("llama-32b", 60), ("llama-32b", 80)]
MEMORY = [8, 12, 16, 20]  # GB of a rank
SAMPLES = 16              # documents of a step for each rank


def machine(name, model):
    """Text of a machine file: one rank with the whole model, and links."""
    layers, width, layer, vocabulary, context, _ = MODELS[model]
    weights = layers * layer + vocabulary * width
    if name == "titan":
        # RTX TITAN over PCIe, Galvatron's released constants: a BERT-Huge layer of 512 tokens 55/24 ms forward (fp32),
        # all-reduces of 8 ranks 0.215 ms/MB that a rank sends. Between nodes: our guess, 1.2 GB/s of a rank.
        flops, inside, across, elem = 2 * 12 * 1280**2 * 512 / (55 / 24), 1e3 / 0.21530878, 1.2e3, 4
    else:
        # A100 over NVLink, Galvatron's shipped profile: a Llama2-7B layer of 2048 tokens 4 ms forward (bf16), 154 GB/s
        # of 8 ranks' all-reduce, 20.8 GB/s between nodes.
        forward = 2 * (4 * 4096**2 + 3 * 4096 * 11008) * 2048 + 2 * 4096 * 2048**2
        flops, inside, across, elem = forward / 4, 154e3, 20.8e3, 2
    token = 6 * weights / flops  # ms; flops: of a ms
    pair = 6 * layers * width / flops
    points = [1 << 12, 1 << 30]
    lines = [f"name {name}-{model}", f"quadratic_ms {pair:.6g}", f"linear_ms {token:.6g}",
             f"model {layers} {width} {elem}"]
    for kind, latency, mb in (("inside", 0.02, inside), ("across", 0.03, across)):
        lines += [f"link {kind} {b} {latency + b / (mb * 1e3):.6g}" for b in points]
    return "\n".join(lines) + "\n"


OVERLAP = "no"


def options(name, model, ranks):
    return f"{MODELS[model][5]} --batch-tokens {SAMPLES * ranks * MODELS[model][4]} " \
           f"--dtype {'fp32' if name == 'titan' else 'bf16'} --overlap {OVERLAP}"


def ways_of(command):
    """(ms, layout) of every way in the table of build/simulate --layout auto."""
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode:
        sys.exit(said.stderr)
    ways = {}
    for line in said.stdout.splitlines():
        found = re.match(r"(\S+|by mean) +([0-9.]+)  +[0-9.]+ +[0-9.]+x +(.*)", line)
        if found:
            ways[found[1]] = (float(found[2]), found[3])
    return ways


def simulate(work, name, model, ranks, gb, layout):
    path = f"{work}/{name}-{model}"
    with open(path, "w") as file:
        file.write(machine(name, model))
    command = ["build/simulate", "--layout", "auto", "--memory", f"{gb * 1e9:.0f}", "--machine", path, "--ranks",
               str(ranks), "--model", options(name, model, ranks), "--layout-file", layout]
    return ways_of(command), path


NAMES = ["DP", "ZeRO-3", "TP", "PP", "DP+TP", "DP+PP", "3D"]


def table(work):
    print("| machine | model | ranks | GB | found, ms | " + " | ".join(NAMES) + " | found |")
    print("|---|---|---|---|---|" + "---|" * len(NAMES) + "---|")
    for name in ("titan", "a100"):
        for model in SMALL:
            for ranks in (8, 16, 32, 64):
                for gb in MEMORY:
                    ways, _ = simulate(work, name, model, ranks, gb, f"{work}/layout")
                    if "found" not in ways:
                        print(f"| {name} | {model} | {ranks} | {gb} | - |" + " - |" * (len(NAMES) + 1))
                        continue
                    ms = ways["found"][0]
                    cells = [f"{ways[w][0] / ms:.2f}x" if w in ways else "-" for w in NAMES]
                    print(f"| {name} | {model} | {ranks} | {gb} | {ms:.0f} | " + " | ".join(cells) +
                          f" | {ways['found'][1]} |", flush=True)


def write_corpus(work, context):
    """Documents that are cut into pieces of `context` tokens."""
    os.makedirs(f"{work}/corpus", exist_ok=True)
    for i in range(40):
        with open(f"{work}/corpus/{i}.txt", "w") as file:
            file.write(chr(97 + i % 26) * (20 * context - 1))


def play(work):
    print("| machine | model | ranks | GB | predicted, ms | played, ms | off | layout |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("titan", "a100"):
        for model in SMALL:
            write_corpus(work, MODELS[model][4])
            for ranks, gb in ((8, 12), (16, 8), (16, 16)) + (((64, 20),) if model in ("bert-huge", "llama-7b") else ()):
                ways, path = simulate(work, name, model, ranks, gb, f"{work}/layout")
                if "found" not in ways:
                    continue
                capacity = re.search(r"rows of (\d+)", ways["found"][1])[1]
                command = f"mpirun --oversubscribe --bind-to none -n {ranks} ./train --device virtual " \
                          f"--machine {path} --data {work}/corpus --val {work}/corpus --layout {work}/layout " \
                          f"{options(name, model, ranks)} --capacity {capacity} --steps 3 --threads 1 " \
                          f"--plan static --out {work}/run"
                subprocess.run(["rm", "-rf", f"{work}/run"])
                said = subprocess.run(command.split(), capture_output=True, text=True)
                if said.returncode:
                    print(said.stderr[:300], file=sys.stderr)
                    continue
                with open(f"{work}/run/log.jsonl") as file:
                    ms = [float(x) for x in re.findall(r'"measured_ms": ([0-9.]+)', file.read())]
                predicted, layout = ways["found"]
                print(f"| {name} | {model} | {ranks} | {gb} | {predicted:.1f} | {ms[-1]:.1f} | "
                      f"{100 * (predicted / ms[-1] - 1):+.2f} % | {layout} |", flush=True)


def layout_of(work, machine, model, ranks, gb, lengths, more):
    command = ["build/simulate", "--layout", "auto", "--memory", f"{gb}G", "--machine", machine, "--ranks", str(ranks),
               "--model", model, "--lengths", lengths, "--layout-file", f"{work}/layout", *more]
    subprocess.run(["rm", "-f", f"{work}/layout"])
    return ways_of(command)


def play_steps(work, machine, ranks, model, capacity):
    command = f"mpirun --oversubscribe --bind-to none -n {ranks} ./train --device virtual --machine {machine} " \
              f"--data {work}/drawn.jsonl --val {work}/drawn.jsonl --layout {work}/layout {model} " \
              f"--capacity {capacity} --steps 4 --threads 1 --out {work}/run"
    subprocess.run(["rm", "-rf", f"{work}/run"])
    said = subprocess.run(command.split(), capture_output=True, text=True)
    if said.returncode:
        return f"({said.stderr.strip().splitlines()[0][:60]})"
    with open(f"{work}/run/log.jsonl") as file:
        ms = [float(x) for x in re.findall(r'"measured_ms": ([0-9.]+)', file.read())]
    return f"{sum(ms[1:]) / len(ms[1:]):.0f}"


def ragged_options(model):
    options = MODELS[model][5].replace("--context 2048", f"--context {LONGEST}")
    return f"{options} --batch-tokens {TOKENS} --dtype bf16 --overlap {OVERLAP}"


def search(work, model, gb, name, more=[]):
    path = f"{work}/a100-{model}"
    with open(path, "w") as file:
        file.write(machine("a100", model))
    return layout_of(work, path, ragged_options(model), 64, gb, name, more), path


def lengths(work):
    print("| model | GiB | lengths | found, ms | by mean | best single way | of found | found layout |")
    print("|---|---|---|---|---|---|---|---|")
    for model, gb in CELLS:
        for name in LENGTHS:
            ways, _ = search(work, model, gb, name)
            if "found" not in ways:
                print(f"| {model} | {gb} | {name} | nothing fits | - | - | - | - |", flush=True)
                continue
            found, layout = ways["found"]
            single = min(set(ways) - {"found", "by mean", "lists"}, key=lambda w: ways[w][0], default=None)
            print(f"| {model} | {gb} | {name} | {found:.0f} | {ways['by mean'][0] / found:.3f} | {single or '-'} | "
                  f"{ways[single][0] / found if single else float('nan'):.3f} | {layout} |", flush=True)


def ragged(work):
    print("| model | GiB | lengths | way | predicted, ms | played, ms | layout |\n|---|---|---|---|---|---|---|")
    for model, gb, name in PLAYED:
        with open(f"{work}/drawn.jsonl", "w") as file:
            subprocess.run(["build/release/dev/draw_corpus", name, "6000", str(LONGEST)], stdout=file)
        for way in ("found", "by mean"):
            ways, path = search(work, model, gb, name, ["--way", way])
            ms, layout = ways[way]
            played = play_steps(work, path, 64, ragged_options(model), re.search(r"rows of (\d+)", layout)[1])
            print(f"| {model} | {gb} | {name} | {way} | {ms:.0f} | {played} | {layout} |", flush=True)


# ---- the one search, played (dev/results/search.md)

KEPT = "build/played.jsonl"


def kept():
    if not os.path.exists(KEPT):
        return []
    with open(KEPT) as file:
        return [json.loads(line) for line in file]


def play_found(work, path, model, name):
    """Mean ms of the steps behind the first of what --layout-file has left; its head says rows and strategies."""
    with open(f"{work}/layout") as file:
        text = file.read()
    for row in kept():
        if (row["model"], row["lengths"], row["text"]) == (model, name, text):
            return row["played"], text
    strategies = re.search(r'--strategies "(.*)"', text)
    command = f"mpirun --oversubscribe --bind-to none -n 64 ./train --device virtual --machine {path} " \
              f"--data {work}/drawn.jsonl --val {work}/drawn.jsonl --layout {work}/layout {ragged_options(model)} " \
              f"--capacity {re.search(r'--capacity ([0-9]+)', text)[1]} --steps 4 --threads 1 --out {work}/run"
    subprocess.run(["rm", "-rf", f"{work}/run"])
    said = subprocess.run(command.split() + (["--strategies", strategies[1]] if strategies else []),
                          capture_output=True, text=True)
    if said.returncode:
        sys.exit(said.stderr)
    with open(f"{work}/run/log.jsonl") as file:
        ms = [float(x) for x in re.findall(r'"measured_ms": ([0-9.]+)', file.read())]
    return statistics.mean(ms[1:]), text


def search_all(work):
    print("| model | GiB | lengths | way | predicted, ms | played, ms | layout |\n|---|---|---|---|---|---|---|")
    for name in LENGTHS:
        with open(f"{work}/drawn.jsonl", "w") as file:
            subprocess.run(["build/release/dev/draw_corpus", name, "6000", str(LONGEST)], stdout=file)
        for model, gb in CELLS:
            for way in ("found", "by mean", "DP+TP", "lists"):
                ways, path = search(work, model, gb, name, ["--way", way])
                if way not in ways:
                    continue
                ms, layout = ways[way]
                played, text = play_found(work, path, model, name)
                with open(KEPT, "a") as file:
                    file.write(json.dumps({"model": model, "gb": gb, "lengths": name, "way": way, "predicted": ms,
                                           "words": layout, "text": text, "played": played}) + "\n")
                print(f"| {model} | {gb} | {name} | {way} | {ms:.0f} | {played:.0f} | {layout} |", flush=True)


# ---- ranks of this machine

RANKS, MODEL = {"cpu": 4, "clock": 2}, {
    "cpu": "--layers 8 --width 192 --heads 4 --context 128 --batch-tokens 2048",
    "clock": "--layers 8 --width 256 --heads 4 --context 256 --batch-tokens 4096",
}
CAPACITY = {"cpu": 256, "clock": 512}
LAYOUTS = {
    "cpu": ["--zero 1", "--recompute block", "--zero 2", "--zero 3", "--tp 2", "--tp 4", "--pp 2", "--pp 4",
            "--tp 2 --pp 2", "--pp 2 --recompute block", "--tp 4 --recompute block", "--pp 4 --recompute block"],
    "clock": ["--zero 1", "--recompute block", "--zero 2", "--zero 3", "--tp 2", "--pp 2", "--tp 2 --recompute block",
              "--pp 2 --recompute block"],
}


def train(work, what, more):
    command = f"mpirun --oversubscribe --bind-to none -n {RANKS[what]} ./train --data {work}/corpus " \
              f"--val {work}/corpus {MODEL[what]} --dtype fp32 --threads 1 --overlap no --plan static --cp 1 {more}"
    said = subprocess.run(command.split(), capture_output=True, text=True)
    if said.returncode:
        sys.exit(said.stderr[:1000])
    return said.stdout


def measured_ms(work, what, more):
    """Of computing: twice the least of five steps of the rank with most, as two ranks share a core. By the clock: the
    median of seven steps."""
    subprocess.run(["rm", "-rf", f"{work}/run"])
    train(work, what, f"{more} --steps 8 --eval-every 0 --sample-every 0 --save-every 0 --out {work}/run")
    with open(f"{work}/run/log.jsonl") as file:
        log = file.read()
    if what == "clock":
        return statistics.median([float(x) for x in re.findall(r'"measured_ms": ([0-9.]+)', log)][1:])
    steps = re.findall(r'"compute_ms": \[([0-9., ]+)\]', log)[1:6]
    ranks = zip(*[[float(x) for x in step.split(",")] for step in steps])
    return max(min(rank) for rank in ranks) * max(1, RANKS[what] / len(os.sched_getaffinity(0)))


def predicted_ms(work, what, more):
    said = train(work, what, f"{more} --explain layout")
    found = re.search(r"predicted ([0-9.e+]+) ms a step.*?: (matmuls.*)", said)
    if what == "clock":
        return float(found[1])
    share = sum(float(x) for x in re.findall(r"(?:matmuls|attention|recomputation|what a round costs) ([0-9.]+) %",
                                             found[2]))
    return float(found[1]) * share / 100


def compare(work, what):
    write_corpus(work, 128 if what == "cpu" else 256)
    os.environ["XDG_CACHE_HOME"] = f"{work}/cache"
    for groups in ["--tp 1"] + ["--tp 2"] * (what == "clock"):  # exchanges of groups are no computing
        train(work, what, f"--probe {groups}")
    print("| layout | predicted, ms | measured, ms | off |\n|---|---|---|---|")
    off = []
    for layout in LAYOUTS[what]:
        more = f"--capacity {CAPACITY[what]} {layout}"
        predicted, measured = predicted_ms(work, what, more), measured_ms(work, what, more)
        off.append(100 * (predicted / measured - 1))
        print(f"| `{layout}` | {predicted:.1f} | {measured:.1f} | {off[-1]:+.1f} % |", flush=True)
    errors = [abs(x) for x in off]
    print(f"\nmedian {statistics.median(errors):.1f} %, worst {max(errors):.1f} %")


if __name__ == "__main__":
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    with tempfile.TemporaryDirectory() as work:
        if len(sys.argv) != 3 or sys.argv[1] not in ("table", "play", "lengths", "ragged", "search", "cpu", "clock"):
            sys.exit(__doc__)
        OVERLAP = sys.argv[2]
        parts = {"table": table, "play": play, "lengths": lengths, "ragged": ragged, "search": search_all}
        parts.get(sys.argv[1], lambda work: compare(work, sys.argv[1]))(work)
