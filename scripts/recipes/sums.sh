# sums.sh - for rl.sh and dpo.sh, which read it: the options of all runs, a hundred prompts "3+4=" in
# $work/prompts.jsonl, and in $work/warm a model of two layers that has seen 20000 sums, three in ten of them right.
set -e
train=${TRAIN:-./train} work=${WORK:-$(mktemp -d)} here=$(dirname "$0")
mkdir -p "$work"
if ! python3 -c 'import json' 2> /dev/null; then
    echo "left out: python3 is not installed"
    exit 0
fi
quiet="--eval-every 0 --sample-every 0 --dtype fp32"
run() { "$@" > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }; }

awk 'BEGIN { for (a = 0; a < 10; a++) for (b = 0; b < 10; b++) printf "{\"prompt\": \"%d+%d=\"}\n", a, b }' \
    > "$work/prompts.jsonl"
awk 'BEGIN { x = 1; for (i = 0; i < 20000; i++) {
    for (k = 0; k < 4; k++) { x = (x * 1103515245 + 12345) % 2147483648; draw[k] = int(x / 65536) }
    a = draw[0] % 10; b = draw[1] % 10; sum = draw[2] % 10 < 3 ? a + b : draw[3] % 19
    printf "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", a, b, sum } }' > "$work/warm.jsonl"
run $train $quiet --data "$work/warm.jsonl" --layers 2 --width 64 --heads 4 --context 16 --batch-tokens 1024 \
    --steps "${WARM:-1000}" --out "$work/warm"

# rewarded WORDS OPTIONS...: answers to all prompts, and their mean reward in a line.
rewarded() {
    words=$1
    shift
    run $train --rollouts "$work/rollouts.jsonl" --tokens 4 --data "$work/prompts.jsonl" "$@"
    echo "$words: mean reward $(python3 "${REWARD:-$here/reward_sums.py}" "$work/rollouts.jsonl" "$work/train.jsonl")"
}
