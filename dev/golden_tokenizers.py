#!/usr/bin/env python3
"""Writes test/golden/tokenizers: small vocabularies with the settings of real ones, and what they make of 10,000 lines.

    pip install tokenizers==0.23.3 && python3 dev/golden_tokenizers.py

The vocabularies are trained by the package tokenizers on these sources and on lines of characters from all over
Unicode; patterns, normalizer, options and added tokens are those of the tokenizer.json of GPT-2, SmolLM2, Llama 3 and
Qwen3. The lines are made of text.json and random numbers, here and in test/test_tokenizer_golden.c alike, and
golden.json has hashes of what the package makes of them: a hash for 100 lines, and the first lines' tokens in full.
"""
import glob
import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FOLDER = "test/golden/tokenizers/"
LINES, BLOCK, EXAMPLES, MERGES = 10000, 100, 6, 900
U64 = 2**64 - 1
TEXT = json.load(open(FOLDER + "text.json"))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")


# ---- lines; hash64 and hash_bytes are those of plan/base/base.c


def hash64(x):
    x = (x + 0x9E3779B97F4A7C15) & U64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & U64
    return x ^ x >> 31


def hash_bytes(data, seed):
    h = hash64(seed ^ len(data))
    for i in range(0, len(data) // 8 * 8, 8):
        h = hash64(h ^ int.from_bytes(data[i:i + 8], "little"))
    return hash64(h ^ int.from_bytes(data[len(data) // 8 * 8:], "little"))


def make_line(number):
    drawn = number << 12

    def draw(n):
        nonlocal drawn
        drawn += 1
        return hash64(drawn) % n

    line = ""
    for _ in range(1 + draw(40)):
        kind = draw(10)
        if kind < 3:
            line += TEXT["snippets"][draw(len(TEXT["snippets"]))]
        elif kind < 6:
            line += " " if draw(3) else ""
            for _ in range(1 + draw(7)):
                line += TEXT["letters"][draw(len(TEXT["letters"]))]
        else:
            first, last = TEXT["ranges"][draw(len(TEXT["ranges"]))]
            for _ in range(1 + draw(4)):
                line += chr(first + draw(last - first + 1))
    return line


# ---- vocabularies


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(first, use_regex):
    return {"type": "Sequence", "pretokenizers": [first, byte_level(use_regex)]}


def split(pattern):
    return sequence({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, False)


def added(token_id, content, special=True):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special}


KINDS = {
    "gpt2": {"splitter": byte_level(True), "end": ["<|endoftext|>"]},
    "smollm2": {"splitter": sequence({"type": "Digits", "individual_digits": True}, True),
                "begin": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<empty_output>"]},
    "llama3": {"splitter": split(LLAMA3),
               "end": ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|eot_id|>",
                       "<|start_header_id|>", "<|end_header_id|>"]},
    "qwen3": {"splitter": split(QWEN), "normalizer": {"type": "NFC"},
              "end": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "</think>"]},
}


def train(kind, corpus, lines):
    """The kind as an object of tokenizer.json."""
    setting = KINDS[kind]
    trained = Tokenizer(models.BPE())
    whole = json.loads(trained.to_str())
    whole |= {"normalizer": setting.get("normalizer"), "pre_tokenizer": setting["splitter"]}
    if kind == "smollm2":  # so that there are merges of digits, which the pattern must keep from being used
        whole["pre_tokenizer"] = byte_level(True)
    trained = Tokenizer.from_str(json.dumps(whole))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"initial_alphabet": alphabet, "vocab_size": 256 + MERGES, "show_progress": False}
    if kind == "smollm2":  # trained on text without some bytes, which so have no token
        options |= {"initial_alphabet": [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"], "limit_alphabet": 190}
    trained.train_from_iterator(corpus, trainers.BpeTrainer(special_tokens=setting.get("begin", []), **options))
    whole = json.loads(trained.to_str()) | {"pre_tokenizer": setting["splitter"]}
    model = whole["model"]
    if kind == "llama3":  # some tokens that no merges make, as in the vocabularies that were not made for merges
        counts = {}
        for line in lines:
            for part, _ in trained.pre_tokenizer.pre_tokenize_str(line):
                counts[part] = counts.get(part, 0) + 1
        unmade = [part for part in sorted(counts, key=lambda part: (-counts[part], part)) if part not in model["vocab"]]
        model["vocab"] |= {part: len(model["vocab"]) + i for i, part in enumerate(unmade[:100])}
    if kind in ("gpt2", "qwen3"):  # as in older files
        model["merges"] = [" ".join(merge) for merge in model["merges"]]
    model["ignore_merges"] = kind == "llama3"
    n = len(model["vocab"])
    whole["added_tokens"] = [added(i, content) for i, content in enumerate(setting.get("begin", []))]
    whole["added_tokens"] += [added(n + i, content, content[1] == "|") for i, content in
                              enumerate(setting.get("end", []))]
    return whole


# ---- results


def reference(whole):
    """The package's tokenizer by which text is data: it finds no added tokens."""
    return Tokenizer.from_str(json.dumps(whole | {"added_tokens": []}))


def save(name, value):
    with open(FOLDER + name, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def main():
    sources = sorted(glob.glob("*/*.[ch]") + glob.glob("*/*.md") + glob.glob("*.md"))
    lines = [make_line(number) for number in range(LINES)]
    corpus = [open(path, encoding="utf-8").read() for path in sources]
    corpus += [make_line(number) for number in range(LINES, LINES + 4000)]
    golden = {"blocks": [{} for _ in range(0, LINES, BLOCK)], "examples": [{} for _ in range(EXAMPLES)]}
    for number, line in enumerate(lines):
        block = golden["blocks"][number // BLOCK]
        block["text"] = hash_bytes(line.encode(), block.get("text", 0))
    for kind in KINDS:
        whole = train(kind, corpus, lines)
        save(kind + ".json", whole)
        found = [encoding.ids for encoding in reference(whole).encode_batch(lines, add_special_tokens=False)]
        if all(token["special"] for token in whole["added_tokens"]):  # that is what the package calls the same
            splits = Tokenizer.from_str(json.dumps(whole))
            splits.encode_special_tokens = True
            assert found == [encoding.ids for encoding in splits.encode_batch(lines, add_special_tokens=False)]
        for number, ids in enumerate(found):
            block = golden["blocks"][number // BLOCK]
            block[kind] = hash_bytes(b"".join(i.to_bytes(4, "little") for i in ids), block.get(kind, 0))
            if number < EXAMPLES:
                golden["examples"][number] |= {"text": lines[number], kind: ids}
        print(kind, len(whole["model"]["vocab"]), "tokens,", sum(map(len, found)), "of all lines")
    save("golden.json", golden)


if __name__ == "__main__":
    main()
