#!/usr/bin/env python3
"""peer_torch.py - tokens a second of GPT-2 training in PyTorch on this machine, to measure ours beside.

    python3 dev/peer_torch.py bf16|fp32 [--device cpu|cuda] [--layers 12 --width 768 --heads 12 --context 1024]
                              [--vocab 50257] [--rows 4] [--batch-tokens 4096] [--steps 3] [--threads 0]
                              [--compile off|model|block]

The same work as one step of ours on full rows: forward, backward, global-norm clip, AdamW on fp32 weights (bf16:
autocast), the gradients of several micro-batches of --rows added up where --batch-tokens is more than one. What
PyTorch offers for speed is used: scaled_dot_product_attention, fused AdamW, torch.compile of the whole model or, since
that takes minutes for a deep one, of one block for all (--compile block; embedding and loss are then compiled too).
Where the GPU's memory does not suffice, half the rows are tried.

Prints one line: tokens a second (median of the steps after the first), loss of the last step, most GB taken, seconds
before the second step, rows, version of PyTorch, tokens a second of processor time. The last, with --threads 1, is
what to compare on a machine that others use too.
"""
import argparse
import contextlib
import math
import statistics
import time

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, C, NH, T):
        super().__init__()
        self.NH = NH
        self.ln1, self.ln2 = torch.nn.LayerNorm(C), torch.nn.LayerNorm(C)
        self.qkv, self.proj = torch.nn.Linear(C, 3 * C), torch.nn.Linear(C, C)
        self.fc, self.fcproj = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)
        if not hasattr(F, "scaled_dot_product_attention"):
            self.register_buffer("mask", torch.triu(torch.ones(T, T, dtype=torch.bool), 1))

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.NH, C // self.NH).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) / math.sqrt(C // self.NH)
            y = torch.softmax(scores.masked_fill(self.mask, -math.inf), dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, V, L, C, NH, T):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(V, C), torch.nn.Embedding(T, C)
        self.blocks, self.lnf = torch.nn.ModuleList(Block(C, NH, T) for _ in range(L)), torch.nn.LayerNorm(C)

    def embed(self, tokens):
        return self.wte(tokens) + self.wpe.weight

    def loss(self, x, targets):
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1))

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, targets)


# Weights as GPT-2's: N(0, 0.02), biases 0.
def initialise(model):
    for name, p in model.named_parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, 0, 0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(p)


def make_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    how = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **how)
    except (RuntimeError, TypeError):  # versions whose fused form knows no CPU
        return torch.optim.AdamW(groups, **how)


# One Block is compiled for all: they differ in their weights only, which are inputs of what is compiled.
def compile_parts(model, how):
    if how == "model":
        return torch.compile(model, dynamic=False)
    if how == "block":
        for block in model.blocks:
            block.compile(dynamic=False)
        model.embed = torch.compile(model.embed, dynamic=False)
        model.loss = torch.compile(model.loss, dynamic=False)
    return model


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


# Seconds of each step by the clock and of the processor, and the last loss.
def train(o, rows):
    torch.manual_seed(1)
    with torch.device(o.device) if o.device == "cuda" else contextlib.nullcontext():  # large ones are slow on the CPU
        model = Gpt(-(-o.vocab // 64) * 64, o.layers, o.width, o.heads, o.context)
    initialise(model)
    optimizer = make_optimizer(model)
    run, times, loss = compile_parts(model, o.compile), [], None
    pool = torch.randint(0, o.vocab, (8, rows, o.context + 1), device=o.device)
    micro_steps = max(1, o.batch_tokens // (rows * o.context))
    for step in range(o.steps):
        wait(o.device)
        start = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        for micro in range(micro_steps):
            tokens = pool[(step * micro_steps + micro) % len(pool)]
            with torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.dtype == "bf16"):
                loss = run(tokens[:, :-1], tokens[:, 1:])
            (loss / micro_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait(o.device)
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return times, loss.item(), micro_steps * rows * o.context


def read_options():
    p = argparse.ArgumentParser()
    p.add_argument("dtype", choices=["bf16", "fp32"])
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--width", type=int, default=768)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--vocab", type=int, default=50257)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--batch-tokens", type=int, default=4096)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--compile", choices=["off", "model", "block"], default="off")
    return p.parse_args()


def main():
    begin, o = time.perf_counter(), read_options()
    if o.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA device")
    if o.threads:
        torch.set_num_threads(o.threads)
    if hasattr(torch, "set_float32_matmul_precision"):
        torch.set_float32_matmul_precision("high" if o.dtype == "bf16" else "highest")
    rows, result = o.rows, None
    while result is None:
        try:
            result = train(o, rows)
        except RuntimeError as error:
            if "out of memory" not in str(error) or rows == 1:
                raise
        if result is None:  # here the failed one's memory can be given back
            rows //= 2
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    times, loss, tokens = result
    later = times[1:] if len(times) > 1 else times
    speed, of_processor = (tokens / statistics.median(each) for each in zip(*later))
    setup = time.perf_counter() - begin - sum(seconds for seconds, _ in later)
    peak = torch.cuda.max_memory_allocated() * 1e-9 if o.device == "cuda" else 0
    print(f"{speed:.6g} {loss:.4f} {peak:.2f} {setup:.1f} {rows} {torch.__version__} {of_processor:.6g}")


if __name__ == "__main__":
    main()
