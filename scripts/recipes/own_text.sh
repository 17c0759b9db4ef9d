#!/bin/sh
# own_text.sh - a GPT-2 on your own text with a tokenizer of its own.
set -e
train=${TRAIN:-./train} work=${WORK:-$(mktemp -d)} here=$(dirname "$0")
mkdir -p "$work/texts"
cp plan/*/*.h data/*.h "$work/texts"

# The tokenizer, where Python has the package; bytes otherwise. For GPT-2's own: --tokenizer gpt2/tokenizer.json
tokenizer=
if python3 -c 'import tokenizers' 2> /dev/null; then
    python3 "$here/tokenizer.py" "$work/tokenizer.json" --vocab 512 "$work"/texts/*
    tokenizer="--tokenizer $work/tokenizer.json"
fi

# For 124M parameters: --preset gpt2-124m, and leave the sizes and --steps out.
$train --layers 2 --width 64 --heads 2 --context 128 --batch-tokens 1024 --steps 20 --eval-every 10 \
    --data "$work/texts" $tokenizer --out "$work/run"
$train --out "$work/run" --sample "static int" --tokens 20
$train --out "$work/run" --eval
