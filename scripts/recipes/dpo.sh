#!/bin/sh
# dpo.sh - training on preferences: of two sums the right one is chosen, by a model that has seen mostly wrong ones.
#
# What is rejected are the model's own wrong answers (--rollouts). The model as it is now is what training stays near:
# --loss dpo finds its log-probabilities of both answers before the first step.
. "$(dirname "$0")/sums.sh"
model="--init $(ls -d "$work"/warm/step-*)"
rewarded "before" $model --answers 16 --temperature 1
python3 -c 'import json, sys
for line in map(json.loads, open(sys.argv[1])):
    a, b = line["prompt"].rstrip("=").split("+")
    right = str(int(a) + int(b))
    for wrong in sorted({x["text"] for x in line["answers"]} - {right}):
        print(json.dumps({"prompt": line["prompt"], "chosen": right, "rejected": wrong}))' \
    "$work/rollouts.jsonl" > "$work/pairs.jsonl"
run $train $model $quiet --data "$work/pairs.jsonl" --val "$work/pairs.jsonl" --loss dpo --beta "${BETA:-0.5}" \
    --batch-tokens 2048 --steps "${STEPS:-60}" --lr "${LR:-1e-3}" --warmup 0 --adamw decay=0 --out "$work/run"
rewarded "after" --out "$work/run" --answers 16 --temperature 1
rewarded "likeliest answers" --out "$work/run" --answers 1 --temperature 0
echo "the run: $work/run, its report: $work/run/report.html"
