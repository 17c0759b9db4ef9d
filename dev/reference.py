#!/usr/bin/env python3
"""reference.py - golden losses and gradients of a tiny GPT-2, made by PyTorch in double precision.

    python3 dev/reference.py test/golden

writes into that folder
    init/                 the initial weights as a Hugging Face directory (model.safetensors, config.json)
    docs.jsonl            the documents, of very different lengths
    golden.safetensors    gradients of the first step (names and layouts of GPT2LMHeadModel), fp32
    golden.json           losses of ten training steps and the gradient norms, as doubles

The model is written out here from the definition of GPT-2, document by document, so that it shares nothing with the
trainer: no packing, no masks, no kernels. Needs torch and numpy only.
"""
import json
import math
import os
import struct
import sys

import numpy as np
import torch

L, C, NH, V, CONTEXT = 2, 32, 4, 257, 48
STEPS, LR, WARMUP, BETAS, EPS, DECAY, CLIP = 10, 0.003, 3, (0.9, 0.95), 1e-8, 0.1, 1.0
LENGTHS = [1, 2, 3, 47, 48, 49, 96, 97, 130, 20, 11, 7, 5]  # in tokens, end-of-text included; the context is 48
END_OF_TEXT = 256


def documents():
    rng = np.random.default_rng(7)
    words = "the ragged edge of every text is where it ends and".split()
    docs = []
    for n in LENGTHS:
        text = " ".join(rng.choice(words, size=n)) if n > 1 else ""
        docs.append(text[: n - 1].ljust(n - 1, "."))
    return docs


def parameters():
    g = torch.Generator().manual_seed(3)

    def normal(*shape, std=0.08):
        # rounded to fp32, so that both sides begin with the same numbers
        return (torch.randn(*shape, generator=g, dtype=torch.float64) * std).float().double()

    p = {"transformer.wte.weight": normal(V, C), "transformer.wpe.weight": normal(CONTEXT, C)}
    for l in range(L):
        h = f"transformer.h.{l}."
        p[h + "ln_1.weight"], p[h + "ln_1.bias"] = 1 + normal(C), normal(C)
        p[h + "attn.c_attn.weight"], p[h + "attn.c_attn.bias"] = normal(C, 3 * C, std=0.2), normal(3 * C)
        p[h + "attn.c_proj.weight"], p[h + "attn.c_proj.bias"] = normal(C, C, std=0.2), normal(C)
        p[h + "ln_2.weight"], p[h + "ln_2.bias"] = 1 + normal(C), normal(C)
        p[h + "mlp.c_fc.weight"], p[h + "mlp.c_fc.bias"] = normal(C, 4 * C, std=0.2), normal(4 * C)
        p[h + "mlp.c_proj.weight"], p[h + "mlp.c_proj.bias"] = normal(4 * C, C, std=0.1), normal(C)
    p["transformer.ln_f.weight"], p["transformer.ln_f.bias"] = 1 + normal(C), normal(C)
    p = {k: v.float().double() for k, v in p.items()}
    return {k: v.requires_grad_() for k, v in p.items()}


def norm(x, p, name):
    return torch.nn.functional.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"], 1e-5)


def piece_loss(p, tokens, targets):
    """Sum of the losses of one piece: tokens (T), targets (T) with -1 for no label."""
    T = len(tokens)
    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][:T]
    mask = torch.triu(torch.full((T, T), -math.inf, dtype=torch.float64), 1)
    for l in range(L):
        h = f"transformer.h.{l}."
        q, k, v = (norm(x, p, h + "ln_1") @ p[h + "attn.c_attn.weight"] + p[h + "attn.c_attn.bias"]).split(C, dim=1)
        q, k, v = (t.view(T, NH, C // NH).transpose(0, 1) for t in (q, k, v))
        att = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(C // NH) + mask, dim=-1) @ v
        x = x + att.transpose(0, 1).reshape(T, C) @ p[h + "attn.c_proj.weight"] + p[h + "attn.c_proj.bias"]
        f = norm(x, p, h + "ln_2") @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"]
        f = 0.5 * f * (1 + torch.tanh(math.sqrt(2 / math.pi) * (f + 0.044715 * f**3)))
        x = x + f @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]
    logits = norm(x, p, "transformer.ln_f") @ p["transformer.wte.weight"].T
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")


def step_loss(p, docs):
    """Mean loss over all labelled tokens. A long document is cut; only its last token has no label."""
    total, n_targets = 0.0, 0
    for text in docs:
        tokens = [END_OF_TEXT] + list(text.encode())
        targets = tokens[1:] + [-1]
        for first in range(0, len(tokens), CONTEXT):
            piece = slice(first, first + CONTEXT)
            total = total + piece_loss(p, torch.tensor(tokens[piece]), torch.tensor(targets[piece]))
        n_targets += len(tokens) - 1
    return total / n_targets


def learning_rate(t):
    if t < WARMUP:
        return LR * t / WARMUP
    x = (t - WARMUP) / (STEPS - WARMUP)
    return LR * (1 - 0.9 * 0.5 * (1 - math.cos(math.pi * x)))


def train(p, docs):
    losses, norms, first_grads = [], [], None
    matrices = [v for v in p.values() if v.dim() > 1]
    vectors = [v for v in p.values() if v.dim() == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    for t in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = step_loss(p, docs)
        loss.backward()
        if first_grads is None:
            first_grads = {k: v.grad.float().numpy().copy() for k, v in p.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)))
        losses.append(float(loss))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(t)
        optimizer.step()
    return losses, norms, first_grads


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            f.write(np.ascontiguousarray(value).tobytes())


def main():
    out = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    os.makedirs(os.path.join(out, "init"), exist_ok=True)
    docs, p = documents(), parameters()
    with open(os.path.join(out, "docs.jsonl"), "w") as f:
        for text in docs:
            f.write(json.dumps({"text": text}) + "\n")
    weights = {k: v.detach().float().numpy() for k, v in p.items()}
    write_safetensors(os.path.join(out, "init", "model.safetensors"), weights)
    config = {"model_type": "gpt2", "activation_function": "gelu_new", "n_layer": L, "n_embd": C, "n_head": NH,
              "n_inner": None, "vocab_size": V, "n_positions": CONTEXT, "layer_norm_epsilon": 1e-05}
    with open(os.path.join(out, "init", "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    losses, norms, grads = train(p, docs)
    write_safetensors(os.path.join(out, "golden.safetensors"), grads)
    options = ["--steps", str(STEPS), "--batch-tokens", str(sum(LENGTHS)), "--lr", str(LR), "--warmup", str(WARMUP),
               "--min-lr", "0.1", "--weight-decay", str(DECAY), "--clip", str(CLIP), "--schedule", "cosine"]
    with open(os.path.join(out, "golden.json"), "w") as f:
        json.dump({"torch": torch.__version__, "options": options, "losses": losses, "grad_norms": norms}, f, indent=1)
        f.write("\n")
    print(f"{out}: losses {losses[0]:.6f} .. {losses[-1]:.6f}, norms {norms[0]:.4f} .. {norms[-1]:.4f}")


if __name__ == "__main__":
    main()
