#!/usr/bin/env python3
"""to_gguf.py - a checkpoint as GGUF, by llama.cpp's own converter; a tokenizer of your own is understood, too.

    python3 scripts/recipes/to_gguf.py path/to/llama.cpp runs/0/step-002000 [options of convert_hf_to_gguf.py]

The converter knows in what way a tokenizer cuts text by a hash of one text's tokens, which no tokenizer of your own
has. Here that way is read from tokenizer.json. Needs what the converter needs: torch, transformers, gguf, and for a
Llama or Qwen sentencepiece, which it imports though no file of theirs is here.
"""
import importlib.util
import json
import os
import runpy
import sys


def way_of(checkpoint):
    """llama.cpp's name of the way in which this tokenizer cuts text; None: it has none."""
    with open(os.path.join(checkpoint, "tokenizer.json"), encoding="utf-8") as f:
        cut = json.load(f)["pre_tokenizer"]
    first = cut.get("pretokenizers", [cut])[0]
    if first["type"] == "ByteLevel":
        return "gpt-2"
    if first["type"] == "Digits":
        return "smollm"
    pattern = first["pattern"]["Regex"]
    return "llama-bpe" if r"|\p{N}{1,3}|" in pattern else "qwen2" if r"|\p{N}|" in pattern else None


def is_chat(checkpoint):
    """Whether a chat template writes all tokens of a prompt, the first one too."""
    path = os.path.join(checkpoint, "tokenizer_config.json")
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8") as f:
        return "chat_template" in json.load(f)


def missing_packages(checkpoint):
    """What the converter will import of this model's kind, and nobody has installed."""
    with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as f:
        needed = ["torch", "transformers", "gguf"] + ["sentencepiece"] * (json.load(f)["model_type"] != "gpt2")
    return [name for name in needed if not importlib.util.find_spec(name)]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    converter, checkpoint = os.path.join(sys.argv[1], "convert_hf_to_gguf.py"), sys.argv[2]
    if os.path.exists(os.path.join(checkpoint, "adapter_config.json")):
        sys.exit(f"to_gguf.py: {checkpoint} is an adapter; make one model of it and its base: ./train --merge DIR")
    if not os.path.exists(os.path.join(checkpoint, "config.json")):
        sys.exit(f"to_gguf.py: {checkpoint}: expected a checkpoint with a config.json; try runs/0/step-002000")
    if not os.path.exists(os.path.join(sys.argv[1], "conversion")):
        sys.exit(f"to_gguf.py: {sys.argv[1]}: expected llama.cpp with its folders conversion and gguf-py")
    sys.path[:0] = [sys.argv[1], os.path.join(sys.argv[1], "gguf-py")]
    missing = missing_packages(checkpoint)
    if missing:
        sys.exit(f"to_gguf.py: llama.cpp's converter needs {', '.join(missing)}; try pip install {' '.join(missing)}")
    from conversion.base import TextModel

    known, vocabulary = TextModel.get_vocab_base_pre, TextModel._set_vocab_gpt2

    def cut(self, tokenizer):
        return way_of(checkpoint) or known(self, tokenizer)

    def whole(self):
        vocabulary(self)
        keys = {key for part in self.gguf_writer.kv_data for key in part}
        if "tokenizer.ggml.add_bos_token" not in keys:  # documents began with it, and chats as their template says
            self.gguf_writer.add_add_bos_token(not is_chat(checkpoint))
        if "tokenizer.ggml.merges" not in keys:  # bytes: llama.cpp wants one, and two NUL are in no text
            self.gguf_writer.add_token_merges(["\u0100 \u0100"])

    TextModel.get_vocab_base_pre, TextModel._set_vocab_gpt2 = cut, whole
    sys.argv = [converter, *sys.argv[2:]]
    runpy.run_path(converter, run_name="__main__")


if __name__ == "__main__":
    main()
