#!/bin/sh
# fine_tune.sh - from a Hugging Face model and a chat data set to an export, with what it is worth before and after.
set -e
train=${TRAIN:-./train} work=${WORK:-$(mktemp -d)} here=$(dirname "$0")
model=${MODEL:-test/golden/gpt2/init} # a directory with config.json and model.safetensors; here a tiny one
# A question ends where an answer begins: the template of a tokenizer without tokens for chats (data/README.md).
prompt=${PROMPT:-"user: 3 + 3

assistant: "}
mkdir -p "$work"
for i in 1 2 3 4 5 6 7 8 9; do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$i + $i\"}," \
        "{\"role\": \"assistant\", \"content\": \"$((2 * i))\"}]}"
done > "$work/chat.jsonl"

$train --eval --init "$model" --data "$work/chat.jsonl"
$train --init "$model" --data "$work/chat.jsonl" --val "$work/chat.jsonl" --batch-tokens 256 --steps 40 --lr 0.003 \
    --eval-every 20 --sample-every 0 --out "$work/run"
$train --eval --out "$work/run" --data "$work/chat.jsonl"
echo "3 + 3" | $train --chat --out "$work/run" --tokens 4 --temperature 0
if ! python3 -c 'import torch, transformers' 2> /dev/null; then
    echo "left out: torch and transformers are not installed"
    exit 0
fi
python3 "$here/export.py" "$work"/run/step-000040 "$prompt"
[ "$LLAMA_CPP" ] || { echo "left out: LLAMA_CPP does not name a folder of llama.cpp"; exit 0; }
python3 "$here/to_gguf.py" "$LLAMA_CPP" "$work"/run/step-000040 --outfile "$work/tuned.gguf"
