#!/bin/sh
# smoke.sh FUZZER - a few seconds of one fuzz entry, so that a reader that breaks at once is found by the suite.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if "$1" -max_total_time="${FUZZ_SMOKE_SECONDS:-3}" -seed=1 -artifact_prefix="$scratch/" > "$scratch/log" 2>&1; then
    echo "  ok      $(sed -n 's/.*Done \([0-9]*\) runs.*/\1 inputs/p' "$scratch/log")"
    echo "1 passed, 0 failed"
else
    tail -n 25 "$scratch/log"
    echo "  FAILED  $1"
    echo "0 passed, 1 failed"
    exit 1
fi
