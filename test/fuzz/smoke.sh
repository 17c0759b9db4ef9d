#!/bin/sh
# smoke.sh - every fuzz entry for a few seconds, so that a reader that breaks at once is found by make test.
seconds=${FUZZ_SMOKE_SECONDS:-3}
passed=0 failed=0
if ! command -v clang > /dev/null 2>&1; then
    n=$(ls test/fuzz/fuzz_*.c | wc -l)
    echo "  skipped $n fuzz entries: clang is not installed"
    echo "0 passed, 0 failed, $n skipped"
    exit 0
fi
if ! make --no-print-directory -s fuzz-programs; then
    echo "  FAILED  the fuzz entries do not build"
    echo "0 passed, 1 failed"
    exit 1
fi
for f in test/fuzz/fuzz_*.c; do
    name=$(basename "$f" .c)
    scratch=$(mktemp -d)
    if build/fuzz/"$name" -max_total_time="$seconds" -seed=1 -artifact_prefix="$scratch/" > "$scratch/log" 2>&1; then
        echo "  ok      $name: $(sed -n 's/.*Done \([0-9]*\) runs.*/\1 inputs/p' "$scratch/log")"
        passed=$((passed + 1))
    else
        echo "  FAILED  $name"
        tail -n 25 "$scratch/log"
        failed=$((failed + 1))
    fi
    rm -rf "$scratch"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
