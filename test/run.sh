#!/bin/sh
# run.sh PROGRAM TEST... - runs every test, each in its own process and with a time limit, and adds up their closing
# lines. A test is a command; one of the form TEST@OTHER is run with OTHER as the program under test.
# A test that ends without a closing line, or not at all, counts as one failure.
export OMP_WAIT_POLICY=passive # tests share the machine
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
given=$1
shift
passed=0 failed=0 skipped=0
for name in "$@"; do
    echo "$name"
    test=${name%%@*} program=$given
    [ "$test" = "$name" ] || program=${name#*@}
    out=build/$(echo "$name" | tr '/ @' '----').out
    timeout "${TEST_SECONDS:-1200}" $test "$program" > "$out" 2>&1 < /dev/null
    status=$?
    cat "$out"
    # The last one: what a launcher says about ranks that failed comes after it.
    line=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)*$/\1 \2 \4/p' "$out" | tail -n 1)
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
