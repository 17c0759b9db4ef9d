#!/bin/sh
# rl.sh - reinforcement learning from a reward: sums of two digits, by a model that has seen mostly wrong ones.
#
# Each round asks the model for answers to all prompts (--rollouts), lets a script say what they are worth, and takes
# four steps on all of them with clipped policy gradients (--loss grpo). It is one run, which goes on with new documents
# each round: its report.html has the reward of every step. For a task of your own: another model and prompts.jsonl, and
# another REWARD.
. "$(dirname "$0")/sums.sh"
model="--init $(ls -d "$work"/warm/step-*)"
goes="$model $quiet --batch-tokens 8192 --loss grpo --clip-low 0.2 --clip-high 0.28 --kl 0 --lr 1e-3"
goes="$goes --schedule constant --warmup 0 --adamw decay=0 --keep 1"
for round in $(seq "${ROUNDS:-16}"); do
    rewarded "round $round" $model --answers 16 --temperature 1 --seed "$round"
    run $train $goes --data "$work/train.jsonl" --val "$work/train.jsonl" --steps $((4 * round)) --out "$work/run"
    model="--out $work/run" goes="--resume --new-data"
done
rewarded "likeliest answers" $model --answers 1 --temperature 0
echo "the run: $work/run, its report: $work/run/report.html"
