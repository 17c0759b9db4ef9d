#!/usr/bin/env python3
"""peer_torch.py - tokens a second of training in PyTorch on this machine, to measure ours beside.

    python3 dev/peer_torch.py bf16|fp32 [--device cpu|cuda] [--preset gpt2-124m] [--layers N --width N --heads N ...]
                              [--rows 4 | --lengths FILE --capacity 16384] [--context 1024] [--batch-tokens 4096]
                              [--steps 3] [--threads 0] [--compile off|model|block] [--check]

The same work as one step of ours: forward, backward, global-norm clip, AdamW on fp32 weights (bf16: autocast), the
gradients of several micro-batches added up where --batch-tokens is more than one. Presets are those of ./train
(dev/peer_models.py). Without --lengths a micro-batch is --rows full rows of --context tokens. With it, documents of
these lengths (dev/peer_documents.py) are packed into rows of --capacity, best fit; attention stays inside each, each
token's label is the next one of its document, the last has none, as in ours. Tokens are counted without what fills a
row up.

What PyTorch offers for speed is used: scaled_dot_product_attention, or varlen_attn for documents where this PyTorch has
it; fused AdamW; torch.compile of the whole model or, since that takes minutes for a deep one, of one block for all
(--compile block; embedding and loss are then compiled too). Where the GPU's memory does not suffice, half the rows are
tried, or rows of half the capacity.

Prints one line: tokens a second (median of the steps after the first, with --lengths after the first two), loss of the
last step, most GB taken, seconds before the second step, rows of a micro-batch, version of PyTorch, tokens a second of
processor time; with --lengths also how rows were filled and how attention was computed. The processor's figure, with
--threads 1, is what to compare on a machine that others use too. --check: instead, loss and gradients of the first
packed row and of its documents one by one, and an error where they differ.
"""
import argparse
import contextlib
import random
import statistics
import time
from typing import NamedTuple, Optional

import torch

from peer_models import Documents, Model, add_shape_options, attention_of_documents, initialise, shape_of

NO_LABEL = -100  # cross_entropy leaves it out


class Batch(NamedTuple):
    tokens: torch.Tensor  # [B, T]
    targets: torch.Tensor  # [B, T]
    documents: Optional[Documents] = None


class Step(NamedTuple):
    batches: list
    labels: int
    tokens: int  # without what fills rows up


def full_steps(o, rows):
    """Steps of full rows; their micro-batches come from a pool of eight."""
    pool = torch.randint(0, o.shape.vocab, (8, rows, o.shape.context + 1), device=o.device)
    pool = [Batch(tokens[:, :-1], tokens[:, 1:]) for tokens in pool]
    n = max(1, o.batch_tokens // (rows * o.shape.context))
    counted = n * rows * o.shape.context
    return [Step([pool[(step * n + i) % len(pool)] for i in range(n)], counted, counted) for step in range(o.steps)]


def pack_best_fit(lengths, n_rows, capacity):
    """Takes documents from the front of `lengths` into n_rows rows, each into the row that it fills most; those that
    fit nowhere stay, in order, for the next step. Ends when hardly anything is free. Returns the rows."""
    rows, free, stay, enough = [[] for _ in range(n_rows)], [capacity] * n_rows, [], n_rows * capacity // 200
    while lengths and sum(free) > enough:
        n = lengths.pop(0)
        room = [f if f >= n else capacity + 1 for f in free]
        best = room.index(min(room))
        if room[best] > capacity:
            stay.append(n)
            continue
        rows[best].append(n)
        free[best] -= n
    lengths[:0] = stay
    return [row for row in rows if row]


def packed_batch(o, lengths, capacity):
    """A row of documents; what fills it up is one more document, without labels."""
    filled = lengths + ([capacity - sum(lengths)] if sum(lengths) < capacity else [])
    tokens = torch.randint(0, o.shape.vocab, (1, capacity), device=o.device)
    targets = tokens.roll(-1, dims=1)
    ends = torch.tensor(lengths).cumsum(0) - 1
    targets[0, ends.to(o.device)] = NO_LABEL
    targets[0, sum(lengths):] = NO_LABEL
    return Batch(tokens, targets, Documents(filled, o.device))


def packed_steps(o, capacity):
    with open(o.lengths) as file:
        all_lengths = [int(line) for line in file if line.strip()]
    if max(all_lengths) > min(capacity, o.shape.context):
        raise SystemExit(f"{o.lengths}: a document has {max(all_lengths)} tokens, but a row --capacity {capacity} "
                         f"and positions --context {o.shape.context}")
    random.Random(1).shuffle(all_lengths)
    left, steps = [], []
    for _ in range(o.steps):
        while sum(left) < 2 * o.batch_tokens:
            left += all_lengths
        rows = pack_best_fit(left, max(1, o.batch_tokens // capacity), capacity)
        counted = sum(map(sum, rows))
        steps.append(Step([packed_batch(o, row, capacity) for row in rows], counted - sum(map(len, rows)), counted))
    return steps


def make_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    how = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **how)
    except (RuntimeError, TypeError):  # versions whose fused form knows no CPU
        return torch.optim.AdamW(groups, **how)


# One Block is compiled for all: they differ in their weights only, which are inputs of what is compiled. Attention of
# documents stays outside: its arguments differ from row to row, as nothing else does.
def compile_parts(model, how, packed):
    if how == "model":
        return torch.compile(model, dynamic=False)
    if how == "block":
        for block in model.blocks:
            if packed:
                block.before, block.after = (torch.compile(f, dynamic=False) for f in (block.before, block.after))
            else:
                block.compile(dynamic=False)
        model.embed = torch.compile(model.embed, dynamic=False)
        model.loss = torch.compile(model.loss, dynamic=False)
    return model


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def autocast(o):
    return torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.dtype == "bf16")


def make_model(o):
    torch.manual_seed(1)
    with torch.device(o.device) if o.device == "cuda" else contextlib.nullcontext():  # large ones are slow on the CPU
        model = Model(o.shape)
    initialise(model)
    return model


def train(o, size):
    """size: rows of a micro-batch, or with --lengths the capacity. Returns seconds of each step by the clock and of the
    processor, the last loss, the steps."""
    model = make_model(o)
    optimizer, run, times = make_optimizer(model), compile_parts(model, o.compile, o.lengths), []
    steps = packed_steps(o, size) if o.lengths else full_steps(o, size)
    for step in steps:
        wait(o.device)
        start, total = (time.perf_counter(), time.process_time()), torch.zeros((), device=o.device)
        optimizer.zero_grad()
        for batch in step.batches:
            with autocast(o):
                loss = run(*batch) / step.labels
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait(o.device)
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return times, total.item(), steps


def train_in_memory(o):
    """Half of it where it does not fit. Returns what train does, and the size."""
    size = o.capacity if o.lengths else o.rows
    while True:
        try:
            return train(o, size), size
        except RuntimeError as error:
            if "out of memory" not in str(error) or size == 1:
                raise
        size //= 2  # out here the failed one's memory can be given back
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def check(o):
    """Loss and gradients of the first packed row, and the same documents each as a full row."""
    model, batch = make_model(o), packed_steps(o, o.capacity)[0].batches[0]

    def gradients_of(batches):
        model.zero_grad()
        with autocast(o):
            losses = [model(*b) for b in batches]
        sum(losses).backward()
        return sum(losses).item(), torch.cat([p.grad.double().flatten() for p in model.parameters()])

    one_by_one, at = [], 0
    for n in batch.documents.lengths:
        one_by_one.append(Batch(batch.tokens[:, at:at + n], batch.targets[:, at:at + n]))
        at += n
    (packed, packed_g), (alone, alone_g) = gradients_of([batch]), gradients_of(one_by_one)
    losses_differ = abs(packed - alone) / alone
    gradients_differ = ((packed_g - alone_g).norm() / alone_g.norm()).item()
    allowed = 1e-5 if o.dtype == "fp32" else 2e-2
    print(f"a row of {len(one_by_one)} documents, {attention_of_documents(o.device)}: "
          f"loss {packed:.6g}, one by one {alone:.6g}; gradients differ by {gradients_differ:.2g} of their norm")
    if not (losses_differ < allowed and gradients_differ < allowed):
        raise SystemExit(f"they differ by more than {allowed:g}")


def read_options():
    p = argparse.ArgumentParser()
    p.add_argument("dtype", choices=["bf16", "fp32"])
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    add_shape_options(p, "gpt2-124m")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--lengths")
    p.add_argument("--capacity", type=int, default=16384)
    p.add_argument("--batch-tokens", type=int, default=4096)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--compile", choices=["off", "model", "block"], default="off")
    p.add_argument("--check", action="store_true")
    return p.parse_args()


def main():
    begin, o = time.perf_counter(), read_options()
    o.shape = shape_of(o)
    if o.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA device")
    if o.threads:
        torch.set_num_threads(o.threads)
    if hasattr(torch, "set_float32_matmul_precision"):
        torch.set_float32_matmul_precision("high" if o.dtype == "bf16" and not o.check else "highest")
    if o.check:
        return check(o)
    (times, loss, steps), size = train_in_memory(o)
    warm = min(2 if o.lengths else 1, len(times) - 1)
    later = list(zip(times, steps))[warm:]
    speed, of_processor = (statistics.median(step.tokens / taken[i] for taken, step in later) for i in (0, 1))
    setup = time.perf_counter() - begin - sum(seconds for (seconds, _), _ in later)
    peak = torch.cuda.max_memory_allocated() * 1e-9 if o.device == "cuda" else 0
    rows = 1 if o.lengths else size
    line = f"{speed:.6g} {loss:.4f} {peak:.2f} {setup:.1f} {rows} {torch.__version__} {of_processor:.6g}"
    if o.lengths:
        used = sum(step.tokens for step in steps) / sum(len(step.batches) * size for step in steps)
        line += f" rows of {size}, {100 * used:.1f} % filled, {attention_of_documents(o.device)}"
    print(line)


if __name__ == "__main__":
    main()
