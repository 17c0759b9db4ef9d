#!/usr/bin/env python3
"""Writes test/golden/chats.jsonl: chats as the templates of known models make them, in text and tokens.

    pip install transformers==5.24.0 trl==1.16.0 && python3 dev/golden_chats.py

The package trl carries the templates of Qwen2.5, Qwen3 and Llama 3 as Hugging Face's hub has them; SmolLM2's is built
from its parts here. The vocabularies are those of test/golden/tokenizers. A line has the messages, the text, its
tokens, those of the prompt before its last message, and a hash of the template; printed is the table of hashes in
data/chat.c.
"""
import importlib.util
import json
import os
import re

from golden_tokenizers import hash_bytes
from transformers import PreTrainedTokenizerFast

FOLDER = "test/golden/"
TRL = os.path.join(os.path.dirname(importlib.util.find_spec("trl").origin), "chat_templates")
PROBE = "{{ 'a' }} {{ '<|im_start|>system\n' + x }}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}\t{{ 'Be kind.' }}"
DATE = "26 Jul 2024"  # what a template of Llama 3 says where nobody tells it the day


def of_trl(name):
    return open(os.path.join(TRL, name + ".jinja"), encoding="utf-8").read()


MESSAGE = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def chatml(system):
    added = ("{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n" + system +
             "<|im_end|>\n' }}{% endif %}") if system else ""
    return "{% for message in messages %}" + added + MESSAGE + "{% endfor %}" + PROMPT


# ---- the hash of a template: chat_hash of data/chat.c

SYSTEM = re.compile(r"""<\|im_start\|>system(?:\\n|\n)?([^'"\\{}\n]{1,255}?)<\|im_end\|>""")


def chat_hash(template):
    system = SYSTEM.search(template)
    kept = template.replace(system[1], "") if system else template
    return hash_bytes(re.sub(r"\\n|\s", "", kept).encode(), 0)


# ---- templates and chats

# name: vocabulary, template, form of data/chat.h
TEMPLATES = {
    "smollm2": ("smollm2", chatml("You are a helpful AI assistant named SmolLM, trained by Hugging Face"), "CHATML"),
    "chatml": ("smollm2", chatml(""), "CHATML"),
    "qwen2_5": ("qwen3", of_trl("qwen2_5"), "QWEN"),
    "qwen3": ("qwen3", of_trl("qwen3"), "QWEN3"),
    "qwen3_instruct_2507": ("qwen3", of_trl("qwen3_instruct_2507"), "QWEN"),
    "llama3": ("llama3", of_trl("llama3"), "LLAMA3"),
    "llama3_1": ("llama3", of_trl("llama3_1"), "LLAMA31"),
    "llama3_2": ("llama3", of_trl("llama3_2"), "LLAMA31"),
}


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
CHATS = [
    say(("user", "What is 2 + 2?"), ("assistant", "It is 4.")),
    say(("system", "Be brief."), ("user", "Name a colour."), ("assistant", "Blue.")),
    say(("user", "Hi"), ("assistant", "Hello!"), ("user", "How are you?"), ("assistant", "Fine, and you?")),
    say(("user", "Is 7 prime?"), ("assistant", "<think>\nNo divisor.\n</think>\n\nYes."), ("user", "Is 9?"),
        ("assistant", "<think>\n3 divides it.\n</think>\n\nNo.")),
    say(("assistant", "May I help you?"), ("user", "Yes: what day is it?"), ("assistant", "I cannot know that.")),
    say(("user", ""), ("assistant", "")),
    say(("user", "Grüße aus Köln, 東京 😀\n\n  x = 1"), ("assistant", "  Grüße!\n\n```c\nint x = 1;\n```\n")),
    say(("system", "You add."), ("user", "2 + 3"), ("assistant", CALL), ("tool", '{"sum": 5}'),
        ("assistant", "It is 5.")),
    say(("user", "twice"), ("assistant", "<think>\n\n</think>\n\n" + CALL), ("tool", "1"), ("tool", "2\n"),
        ("assistant", "1 and 2")),
    say(("user", "\nfirst\n"), ("system", "Now in French."), ("user", "and then?"), ("assistant", "Et puis.\n")),
]


def render(template, tokenizer, messages, prompt):
    return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, date_string=DATE,
                                         add_generation_prompt=prompt)


def main():
    lines = [{"probe": PROBE, "hash": f"{chat_hash(PROBE):016x}"}]
    for name, (vocabulary, template, form) in TEMPLATES.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{FOLDER}tokenizers/{vocabulary}.json",
                                            bos_token="<|begin_of_text|>" if vocabulary == "llama3" else None)
        for messages in CHATS:
            text = render(template, tokenizer, messages, False)
            prompt = render(template, tokenizer, messages[:-1], True) if len(messages) > 1 else ""
            encode = lambda t: tokenizer(t, add_special_tokens=False)["input_ids"]
            system = SYSTEM.search(template)
            lines.append({"template": name, "form": form, "system": system[1] if system else "",
                          "hash": f"{chat_hash(template):016x}", "vocabulary": vocabulary, "messages": messages,
                          "text": text, "ids": encode(text), "prompt": encode(prompt)})
        print(f"    {{0x{chat_hash(template):016x}, CHAT_{form}}},  // {name}")
    with open(FOLDER + "chats.jsonl", "w", encoding="utf-8") as f:
        for line in lines:
            f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
