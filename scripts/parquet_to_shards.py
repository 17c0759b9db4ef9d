#!/usr/bin/env python3
"""parquet_to_shards.py - columns of parquet files, text or messages, as JSONL for the trainer, or as token shards.

    python3 scripts/parquet_to_shards.py OUT FILE.parquet ... [--column text] [--tokenizer tokenizer.json]

Without a tokenizer OUT/NAME.jsonl has a line for each row; with one, of text, OUT/NAME.bin is a shard of llm.c's
format: 256 int32 (20240520, 1, tokens), then uint16, or (20240801, 7, tokens) and uint32 where the vocabulary is
larger. Needs pyarrow, and for shards tokenizers and numpy.
"""
import argparse
import json
import os
import sys


def separator(tokenizer):
    """The token between documents, as data/README.md says."""
    for name in ("<|begin_of_text|>", "<|endoftext|>"):
        if tokenizer.token_to_id(name) is not None:
            return tokenizer.token_to_id(name)
    sys.exit("the tokenizer has neither <|begin_of_text|> nor <|endoftext|>")


def write_jsonl(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"text" if isinstance(row, str) else "messages": row}, ensure_ascii=False) + "\n"
                     for row in rows)


def write_shard(path, rows, tokenizer):
    import numpy as np
    end, wide = separator(tokenizer), tokenizer.get_vocab_size() > 65536
    tokens = [t for row in rows for t in (end, *tokenizer.encode(row, add_special_tokens=False).ids)]
    header = np.zeros(256, "<i4")
    header[:3] = (20240801, 7, len(tokens)) if wide else (20240520, 1, len(tokens))
    with open(path, "wb") as f:
        f.write(header.tobytes() + np.array(tokens, "<u4" if wide else "<u2").tobytes())


def check_row(row, name, column, is_shard):
    """A row is a text, or messages, which no shard can hold: it does not say what is learnt."""
    is_chat = isinstance(row, list) and all(isinstance(m, dict) and ("role" in m or "from" in m) for m in row)
    if is_chat and is_shard:
        sys.exit(f"{name}: the column {column} has messages, which shards cannot hold; leave --tokenizer out")
    if not is_chat and not isinstance(row, str):
        sys.exit(f"{name}: expected text or messages in the column {column}, found {json.dumps(row, default=str)[:80]}")


def read_column(name, column):
    import pyarrow.parquet
    try:
        names = pyarrow.parquet.read_schema(name).names
        if column not in names:
            sys.exit(f"{name}: no column {column}, found {', '.join(names)}; try --column NAME")
        return [row for row in pyarrow.parquet.read_table(name, columns=[column])[column].to_pylist() if row]
    except (OSError, pyarrow.lib.ArrowException) as error:
        sys.exit(f"{name}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--column", default="text")
    parser.add_argument("--tokenizer")
    args = parser.parse_args()
    tokenizer, made = None, set()
    if args.tokenizer:
        import tokenizers
        tokenizer = tokenizers.Tokenizer.from_file(args.tokenizer)
    os.makedirs(args.out, exist_ok=True)
    for name in args.files:
        path = os.path.join(args.out, os.path.splitext(os.path.basename(name))[0] + (".bin" if tokenizer else ".jsonl"))
        if path in made:
            sys.exit(f"{name}: another file made {path} before; give them folders of their own")
        made.add(path)
        rows = read_column(name, args.column)
        for row in rows:
            check_row(row, name, args.column, tokenizer)
        write_shard(path, rows, tokenizer) if tokenizer else write_jsonl(path, rows)
        print(f"{path}: {len(rows)} documents")


if __name__ == "__main__":
    main()
