#!/bin/sh
# plot.sh - two runs side by side: report.html, CSV, TensorBoard.
set -e
train=${TRAIN:-./train} work=${WORK:-$(mktemp -d)} scripts=$(dirname "$0")/..
mkdir -p "$work/texts"
cp plan/*/*.h "$work/texts"
for lr in 0.001 0.004; do
    $train --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 20 --eval-every 10 \
        --eval-every tokens=4096 --sample-every 0 --save-every 0 --lr $lr --data "$work/texts" \
        --out "$work/lr-$lr" > /dev/null
done
$train --report "$work/lr-0.001" "$work/lr-0.004" --out "$work/both" # open both/report.html in a browser
command -v python3 > /dev/null || { echo "left out: no python3"; exit 0; }
python3 "$scripts/log_to.py" csv "$work/lr-0.001" | head -n 3
python3 -c 'import tensorboard' 2> /dev/null || { echo "left out: tensorboard is not installed"; exit 0; }
python3 "$scripts/log_to.py" tensorboard "$work"/lr-* --to "$work/tb"
