#!/bin/sh
# rl.sh - reinforcement learning from a reward: sums of two digits, by a model that has seen mostly wrong ones.
#
# Each round asks the model for answers to all prompts (--rollouts), lets a script say what they are worth, and takes
# four steps on all of them with clipped policy gradients (--loss grpo). For a task of your own: another model and
# prompts.jsonl, and another REWARD.
set -e
train=${TRAIN:-./train} work=${WORK:-$(mktemp -d)} here=$(dirname "$0")
rounds=${ROUNDS:-16} warm=${WARM:-1000} reward=${REWARD:-$here/reward_sums.py}
mkdir -p "$work"
if ! python3 -c 'import json' 2> /dev/null; then
    echo "left out: python3 is not installed"
    exit 0
fi
quiet="--eval-every 0 --sample-every 0 --dtype fp32 --keep 1"

# All prompts; sums for a start, three in ten of which are right.
awk 'BEGIN { for (a = 0; a < 10; a++) for (b = 0; b < 10; b++) printf "{\"prompt\": \"%d+%d=\"}\n", a, b }' \
    > "$work/prompts.jsonl"
awk 'BEGIN { x = 1; for (i = 0; i < 20000; i++) {
    for (k = 0; k < 4; k++) { x = (x * 1103515245 + 12345) % 2147483648; draw[k] = int(x / 65536) }
    a = draw[0] % 10; b = draw[1] % 10; sum = draw[2] % 10 < 3 ? a + b : draw[3] % 19
    printf "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", a, b, sum } }' > "$work/warm.jsonl"
$train $quiet --data "$work/warm.jsonl" --layers 2 --width 64 --heads 4 --context 16 --batch-tokens 1024 \
    --steps "$warm" --out "$work/model" > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }

model=$(ls -d "$work"/model/step-*)
for round in $(seq "$rounds"); do
    $train --rollouts "$work/rollouts.jsonl" --answers 16 --tokens 4 --temperature 1 --seed "$round" \
        --init "$model" --data "$work/prompts.jsonl" > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
    echo "round $round: mean reward $(python3 "$reward" "$work/rollouts.jsonl" "$work/train.jsonl")"
    $train $quiet --init "$model" --data "$work/train.jsonl" --val "$work/train.jsonl" --batch-tokens 8192 \
        --loss grpo --clip-low 0.2 --clip-high 0.28 --kl 0 --steps 4 --lr 1e-3 --schedule constant --warmup 0 \
        --adamw decay=0 --seed "$round" --out "$work/next" > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
    rm -rf "$work/model"
    mv "$work/next" "$work/model"
    model=$(ls -d "$work"/model/step-*)
done
$train --rollouts "$work/rollouts.jsonl" --answers 1 --tokens 4 --temperature 0 --init "$model" \
    --data "$work/prompts.jsonl" > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
echo "likeliest answers: mean reward $(python3 "$reward" "$work/rollouts.jsonl" "$work/train.jsonl")"
echo "model: $model"
