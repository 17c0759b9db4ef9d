#!/usr/bin/env python3
"""export.py - a checkpoint in transformers: its tokenizer, its model, a text.

    python3 scripts/recipes/export.py runs/0/step-002000 "Once upon a time"
"""
import os
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if not any(os.path.exists(os.path.join(sys.argv[1], name)) for name in ("config.json", "adapter_config.json")):
        sys.exit(f"export.py: {sys.argv[1]}: expected a checkpoint, found no config.json in it; try runs/0/step-002000")
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
    # Every document begins with this token where the model was trained.
    text = tokenizer.bos_token + sys.argv[2]
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
    print(generate(text, max_new_tokens=20, do_sample=False)[0]["generated_text"])


if __name__ == "__main__":
    main()
