#!/usr/bin/env python3
"""peer_generate.py - tokens a second that transformers' generate draws, to measure ./train --rollouts beside.

    python3 dev/peer_generate.py [--device cpu|cuda] [--layers N --width N ...] [--prompts 8] [--answers 16]
                                 [--prompt 212] [--tokens 128]

A Qwen3ForCausalLM of the preset qwen3-0.6b (dev/peer_models.py) with random weights in bf16, not compiled. All answers
to all prompts are one batch; each has --tokens tokens, sampled from the whole vocabulary. Prints one line: new tokens a
second, seconds, most GB taken, versions of PyTorch and transformers.
"""
import argparse
import time

import torch
import transformers
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from peer_models import add_shape_options, shape_of


def make_model(s, device):
    config = Qwen3Config(vocab_size=s.vocab, hidden_size=s.width, intermediate_size=s.hidden, head_dim=s.head_size,
                         num_hidden_layers=s.layers, num_attention_heads=s.heads, num_key_value_heads=s.kv_heads,
                         max_position_embeddings=s.context, rms_norm_eps=s.eps, tie_word_embeddings=True)
    with torch.device(device):
        return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


def generate(model, ids, tokens):
    """Seconds. Answers do not end by themselves: no token ends one."""
    how = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=tokens,
                           eos_token_id=None, pad_token_id=0)
    begin = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=how)
    if ids.is_cuda:
        torch.cuda.synchronize()
    if out.shape[1] != ids.shape[1] + tokens:
        raise SystemExit(f"generate: {out.shape[1]} tokens came of {ids.shape[1]} and {tokens} new ones")
    return time.perf_counter() - begin


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    add_shape_options(p, "qwen3-0.6b")
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--answers", type=int, default=16)
    p.add_argument("--prompt", type=int, default=212)
    p.add_argument("--tokens", type=int, default=128)
    o = p.parse_args()
    if o.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA device")
    torch.manual_seed(1)
    s = shape_of(o)
    model = make_model(s, o.device)
    ids = torch.randint(0, s.vocab, (o.prompts, o.prompt), device=o.device).repeat_interleave(o.answers, dim=0)
    generate(model, ids, 2)  # libraries are loaded
    seconds = generate(model, ids, o.tokens)
    peak = torch.cuda.max_memory_allocated() * 1e-9 if o.device == "cuda" else 0
    speed = len(ids) * o.tokens / seconds
    print(f"{speed:.6g} {seconds:.2f} {peak:.2f} {torch.__version__} {transformers.__version__}")


if __name__ == "__main__":
    main()
