#!/bin/sh
# bench.sh [RATE] - what communication between nodes costs with overlap on and off: two nodes of one rank each (run.sh),
# links of RATE (default 400mbit), the program itself. Runs with and without overlap alternate; medians of the steps of
# ROUNDS runs. `waiting` is the share of a step in which rank 0 waited for the other: exposed communication.
#
# The nodes share this machine's cores: computing is real, links are emulated by tbf.
root=$(cd "$(dirname "$0")/../.." && pwd)
train=${TRAIN:-$root/build/release/train}
rate=${1:-400mbit} rounds=${ROUNDS:-3} steps=${STEPS:-8}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
[ -x "$train" ] || { echo "bench: there is no $train; run make first" >&2; exit 1; }
mkdir "$work/data"
cat "$root"/plan/*/*.c "$root"/data/*.c "$root"/run/*/*.c > "$work/data/text.txt" # one long document

median() { sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }
# values FIELD FILE...: those of all steps but the first, which opens connections
values() {
    field=$1
    shift
    for file in "$@"; do sed -n "2,\$s/.*\"$field\": \([-0-9.e]*\).*/\1/p" "$file"; done
}
run() { # run NAME OVERLAP ROUND OPTIONS...
    out=$work/$1-$2-$3 overlap=$2
    shift 3
    "$root/dev/cluster/run.sh" --nodes 2 --ranks-per-node 1 --rate "$rate" -- "$train" --data "$work/data" \
        --val "$work/data" --layers 4 --width 256 --heads 8 --context 4096 --batch-tokens 8192 --dtype fp32 \
        --threads 1 --steps "$steps" --eval-every 0 --sample-every 0 --save-every 0 --overlap "$overlap" \
        --out "$out" "$@" \
        > "$work/out" 2>&1 || { tail -n 5 "$work/out"; exit 1; }
}

echo "two nodes of one rank, links of $rate, 4 layers of width 256, documents of 4096 tokens, 8192 tokens a step"
echo "                                overlap   tokens/s   waiting"
all() { # all NAME OPTIONS...
    name=$1
    shift
    for round in $(seq "$rounds"); do
        for overlap in yes no; do run "$name" $overlap "$round" "$@"; done
    done
    for overlap in yes no; do
        speed=$(values tokens_per_second "$work/$name-$overlap"-*/log.jsonl | median)
        seconds=$(values seconds "$work/$name-$overlap"-*/log.jsonl | median)
        exposed=$(values exposed_seconds "$work/$name-$overlap"-*/log.jsonl | median)
        echo "$name $overlap $speed $seconds $exposed" |
            awk '{ printf "  %-30s %-7s %8.0f   %5.1f %%\n", $1, $2, $3, 100 * $5 / $4 }'
    done
}
all documents-on-one-rank --plan static
all ulysses --cp 2,kind=ulysses
all ring --cp 2,kind=ring
all zero-3 --plan static --zero 3
