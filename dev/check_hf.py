#!/usr/bin/env python3
"""check_hf.py - a checkpoint of ours in Hugging Face's own GPT2LMHeadModel: are the logits the same?

    python3 dev/check_hf.py runs/0/step-003500 [TEXT]

Reads the first bytes of TEXT (default: this file) with a byte-level checkpoint through both programs, ours by
--dump-grads, and prints the largest difference. Needs torch, transformers and ./train.
"""
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.numpy import load_file
from transformers import GPT2LMHeadModel


def main():
    checkpoint, text_path = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else __file__
    model = GPT2LMHeadModel.from_pretrained(checkpoint).eval()
    context = model.config.n_positions
    with open(text_path, "rb") as f:
        text = f.read(context - 1)
    with tempfile.TemporaryDirectory() as scratch:
        piece, dump = os.path.join(scratch, "piece.txt"), os.path.join(scratch, "dump")
        with open(piece, "wb") as f:
            f.write(text)
        options = ["--init", checkpoint, "--data", piece, "--val", piece, "--batch-tokens", str(context)]
        command = ["./train", *options, "--dtype", "fp32", "--dump-grads", dump]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ours = torch.tensor(load_file(dump)["logits"])
    with torch.no_grad():
        theirs = model(torch.tensor([[256] + list(text)])).logits[0]
    worst, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    print(f"{len(text) + 1} tokens: logits differ by at most {worst:.2e}, the largest is {largest:.1f}")
    sys.exit(worst > 1e-4 * largest)


if __name__ == "__main__":
    main()
