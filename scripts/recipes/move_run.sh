#!/bin/sh
# move_run.sh - a run goes on in another folder, as on another machine, to the same bits.
set -e
train=${TRAIN:-./train} work=${WORK:-$(mktemp -d)}
options="--layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --eval-every 0 --sample-every 0 --dtype fp32"
mkdir -p "$work/here" "$work/there"
cp plan/*/*.h "$work/here"
$train $options --data "$work/here" --steps 8 --out "$work/whole" | tee "$work/whole.txt"

# The schedule is that of the whole run: --steps says its end; here it stops in the middle, as a power cut would.
$train $options --data "$work/here" --steps 8 --save-every 4 --keep 0 --out "$work/run" > /dev/null
rm -r "$work/run/step-000008"

# What has to go along: the run's folder (its tokenizer is in it) and the documents, which may lie elsewhere.
cp -r "$work/run" "$work/moved"
cp "$work"/here/*.h "$work/there"
rm -r "$work/run" "$work/here"
$train --resume --out "$work/moved" --data "$work/there" | tee "$work/moved.txt"
[ "$(grep -o 'loss hash .*' "$work/whole.txt")" = "$(grep -o 'loss hash .*' "$work/moved.txt")" ]
echo "the same bits"
