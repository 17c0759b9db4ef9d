#!/usr/bin/env python3
"""peer_torch.py - tokens a second of GPT-2 124M training in PyTorch on this machine's CPU, to measure ours beside.

    python3 dev/peer_torch.py bf16|fp32

The same work as one step of bench_train on full rows: 4 x 1024 tokens, forward, backward, global-norm clip, AdamW on
fp32 masters (bf16: autocast). Uses scaled_dot_product_attention where this PyTorch has it. Prints the better of two
steps after a first one.
"""
import math
import sys
import time

import torch
import torch.nn.functional as F

L, C, NH, V, T, B = 12, 768, 12, 50304, 1024, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = torch.nn.LayerNorm(C), torch.nn.LayerNorm(C)
        self.qkv, self.proj = torch.nn.Linear(C, 3 * C), torch.nn.Linear(C, C)
        self.fc, self.fcproj = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)
        self.register_buffer("mask", torch.triu(torch.ones(T, T, dtype=torch.bool), 1))

    def attention(self, x):
        q, k, v = (t.view(B, T, NH, C // NH).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) / math.sqrt(C // NH)
            y = torch.softmax(scores.masked_fill(self.mask, -math.inf), dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(V, C), torch.nn.Embedding(T, C)
        self.blocks, self.lnf = torch.nn.ModuleList(Block() for _ in range(L)), torch.nn.LayerNorm(C)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.reshape(-1, V).float(), targets.reshape(-1))


def main():
    dtype = torch.bfloat16 if sys.argv[1] == "bf16" else torch.float32
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    times = []
    for step in range(3):
        tokens = torch.randint(0, 50257, (B, T + 1))
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(B * T / min(times[1:]))


if __name__ == "__main__":
    main()
