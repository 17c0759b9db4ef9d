#!/usr/bin/env python3
"""check_hf.py - checkpoints of ours in Hugging Face's own classes: are the logits the same?

    python3 dev/check_hf.py runs/0/step-002000 ...

Reads documents of very different lengths, packed, through ours (--dump-grads) and one by one through the class that
config.json names, and prints the largest difference. Byte-level checkpoints get pieces of this file, larger
vocabularies random tokens. Needs torch, transformers (4 or 5), and the program beside this folder, or TRAIN=PATH.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM, logging

LONGEST = 256  # tokens
TRAIN = os.environ.get("TRAIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
SHARDS = [(50256, 20240520, 1, "H"), (128000, 20240801, 7, "I")]  # end-of-text, magic, version, type of llm.c's


def lengths(context):
    return [n for n in (1, 2, 3, 17, context // 3, context // 2 + 1, context - 1, context, 40, 5) if 0 < n <= context]


def write_text(path, context):
    """Documents of bytes; the trainer puts end-of-text before each."""
    with open(__file__, "rb") as f:
        text = f.read() * 2
    docs = [text[7 * n : 8 * n - 1] for n in lengths(context)]
    with open(path, "w") as f:
        f.writelines(json.dumps({"text": d.decode()}) + "\n" for d in docs)
    return [[256, *d] for d in docs]


def write_shard(path, context, vocabulary, begin):
    end, magic, version, letter = ([s for s in SHARDS if s[0] < vocabulary] or SHARDS[:1])[-1]
    if end >= vocabulary:
        end = begin  # a vocabulary of one's own: config.json knows what stands between documents
    rng = np.random.default_rng(5)
    docs = [[end, *(int(end + 1 + t) % vocabulary for t in rng.integers(0, vocabulary - 1, n - 1))]
            for n in lengths(context)]
    tokens = [t for d in docs for t in d]
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", magic, version, len(tokens), *[0] * 253))
        f.write(struct.pack(f"<{len(tokens)}{letter}", *tokens))
    return docs


def our_logits(checkpoint, context, vocabulary, begin):
    """The documents, and for each (tokens, vocabulary) of our logits."""
    with tempfile.TemporaryDirectory() as scratch:
        is_text = vocabulary == 257
        data = os.path.join(scratch, "docs.jsonl" if is_text else "docs.bin")
        docs = write_text(data, context) if is_text else write_shard(data, context, vocabulary, begin)
        dump, total = os.path.join(scratch, "dump"), sum(map(len, docs))
        options = ["--init", checkpoint, "--data", data, "--val", data, "--batch-tokens", str(total)]
        options += ["--context", str(context), "--dtype", "fp32", "--dump-grads", dump]
        subprocess.run([TRAIN, *options], check=True, stdout=subprocess.DEVNULL)
        found = load_file(dump)
    return docs, [found["logits"][found["documents"] == i] for i in range(len(docs))]


def check(checkpoint):
    config = AutoConfig.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    name, positions = type(model).__name__, config.max_position_embeddings
    if [name] != config.architectures:
        sys.exit(f"{checkpoint}: expected a {config.architectures}, found a {name}")
    # A learned table of positions has one length; others go on.
    context = positions if config.model_type == "gpt2" else min(positions, LONGEST)
    docs, ours = our_logits(checkpoint, context, config.vocab_size, config.bos_token_id)
    worst = largest = 0.0
    for tokens, found in zip(docs, ours):
        with torch.no_grad():
            theirs = model(torch.tensor([tokens])).logits[0].numpy()
        if found.shape != theirs.shape:
            sys.exit(f"{checkpoint}: expected logits {theirs.shape} of a document, found {found.shape}")
        worst, largest = max(worst, float(np.abs(found - theirs).max())), max(largest, float(np.abs(theirs).max()))
    print(f"{checkpoint}: {name}, {len(docs)} documents of {min(map(len, docs))} to {max(map(len, docs))} tokens: "
          f"logits differ by at most {worst:.2e}, the largest is {largest:.1f}")
    return worst <= 1e-4 * largest


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    sys.exit(not all([check(checkpoint) for checkpoint in sys.argv[1:]]))


if __name__ == "__main__":
    main()
