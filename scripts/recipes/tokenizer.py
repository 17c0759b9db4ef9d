#!/usr/bin/env python3
"""tokenizer.py - a byte-level BPE of your own text as tokenizer.json, in the form of GPT-2's. Needs the package
tokenizers.

    python3 scripts/recipes/tokenizer.py tokenizer.json --vocab 32000 my-texts/*.txt
"""
import argparse
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocab", type=int, default=32000)
    args = parser.parse_args()
    for name in args.files:
        if not os.path.isfile(name):
            sys.exit(f"tokenizer.py: {name}: expected a text file")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=args.vocab, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train(args.files, trainer)
    tokenizer.save(args.out)
    print(f"{args.out}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
