#!/usr/bin/env python3
"""Renders chats by a model's own template, where ./train does not know it: messages become prompts and completions.

    python3 scripts/recipes/chats.py MODEL_OR_DIRECTORY < chats.jsonl > rendered.jsonl

A line {"messages": [...]} becomes a line {"prompt": [...], "completion": [...]} of tokens for each turn of its
assistant: what the template makes of all before it, with the header of an answer, and what it adds for that turn up to
the token that ends it. Where a template changes what stands before (thoughts of earlier turns that are left out), a
turn is rendered as if it were the last one. Needs transformers.
"""
import json
import sys

from transformers import AutoTokenizer


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    for number, line in enumerate(sys.stdin, 1):
        messages = json.loads(line).get("messages")
        if not messages:
            sys.exit(f"line {number}: expected messages, found none")
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = tokenizer.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True)
            whole = tokenizer.apply_chat_template(messages[:i + 1], tokenize=False)
            if not whole.startswith(prompt):
                sys.exit(f"line {number}: the template does not begin message {i} with the header of an answer")
            ids = [tokenizer(text, add_special_tokens=False)["input_ids"]
                   for text in (prompt, whole[len(prompt):].rstrip("\n"))]
            print(json.dumps({"prompt": ids[0], "completion": ids[1]}))


main()
