#!/bin/sh
# run.sh PROGRAM TEST... - runs every test, each in its own process and with a time limit, and adds up their closing
# lines.
# A test that ends without a closing line, or not at all, counts as one failure.
export OMP_WAIT_POLICY=passive # tests share the machine
program=$1
shift
passed=0 failed=0 skipped=0
for test in "$@"; do
    name=$test
    echo "$name"
    out=build/$(echo "$test" | tr / -).out
    timeout "${TEST_SECONDS:-300}" "$test" "$program" > "$out" 2>&1 < /dev/null
    status=$?
    cat "$out"
    line=$(tail -n 1 "$out" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)*$/\1 \2 \4/p')
    if [ -z "$line" ]; then
        echo "  FAILED  $name: ended with status $status and no closing line"
        failed=$((failed + 1))
        continue
    fi
    p=$(echo "$line" | cut -d' ' -f1) f=$(echo "$line" | cut -d' ' -f2) s=$(echo "$line" | cut -d' ' -f3)
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    if [ "$f" = 0 ] && [ $status != 0 ]; then
        echo "  FAILED  $name: status $status"
        failed=$((failed + 1))
    fi
done
if [ $skipped -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ $failed = 0 ] && [ $passed -gt 0 ]
