#!/bin/sh
# gpu_ab.sh OUT "COMMAND A" "COMMAND B" [OPTIONS...] - two trainings that differ in one thing, a build or an option,
# taken in turns (A B, B A, A B, ...) for 200 seconds (SECONDS_IN_ALL), because a GPU's clocks drift. Prints the median
# tokens a second of each (of a run: of the later half of its steps), how far its runs differ, and the ratio.
#
#   scripts/gpu_ab.sh build/ab "build/release/train --device attention=own" \
#       "build/release/train --device attention=cudnn" \
#       --device cuda --preset gpt2-124m --batch-tokens 131072 --steps 12 --data plan run kernels data
[ $# -ge 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 1; }
out=$1 a=$2 b=$3 started=$(date +%s) rounds=0 took=0
shift 3
mkdir -p "$out" || exit 1
rm -f "$out"/[AB].speeds

# median FILE: of its numbers; then the least, the greatest, and how many there are
median() { sort -g "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)], x[1], x[NR], NR }'; }

once() { # once A|B COMMAND OPTIONS...: its speed to OUT/A.speeds
    which=$1 command=$2
    shift 2
    rm -rf "$out/run"
    if ! timeout 120 $command --eval-every 0 --sample-every 0 --save-every 0 --out "$out/run" "$@" \
        > "$out/$which.out" 2>&1; then
        echo "gpu_ab: $which failed: $(tail -n 1 "$out/$which.out")" >&2
        exit 1
    fi
    sed -n 's/.*"tokens_per_second": \([0-9.e+]*\).*/\1/p' "$out/run/log.jsonl" > "$out/steps"
    tail -n $((($(wc -l < "$out/steps") + 1) / 2)) "$out/steps" > "$out/later"
    median "$out/later" | cut -d ' ' -f 1 >> "$out/$which.speeds"
}

while [ $rounds = 0 ] || [ $((took + took / rounds)) -lt "${SECONDS_IN_ALL:-200}" ]; do
    if [ $((rounds % 2)) = 0 ]; then once A "$a" "$@" && once B "$b" "$@"; else once B "$b" "$@" && once A "$a" "$@"; fi
    rounds=$((rounds + 1)) took=$(($(date +%s) - started))
done
{
    echo "A: $a"
    echo "B: $b"
    echo "both: $*"
    { echo "A $(median "$out/A.speeds")"; echo "B $(median "$out/B.speeds")"; } | awk '
        { printf "%s: %.0f tokens/s in the median of %d runs, %.0f to %.0f\n", $1, $2, $5, $3, $4; m[$1] = $2 }
        END { printf "B / A = %.4f\n", m["B"] / m["A"] }'
} | tee "$out/summary"
