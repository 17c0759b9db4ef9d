#!/bin/sh
# recipes.sh TRAIN - every recipe of scripts/recipes runs from its beginning to its end, and says what it left out.
export TRAIN=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
try() { # try SCRIPT WORDS: it ends well and prints the words
    WORK=$work/$1 sh "scripts/recipes/$1" > "$work/out" 2>&1
    if [ $? != 0 ] || ! grep -q "$2" "$work/out"; then
        echo "  FAILED  $1"
        sed 's/^/    /' "$work/out" | tail -n 20
        failed=$((failed + 1))
    elif grep -q '^left out: ' "$work/out"; then
        echo "  skipped a part of $1: $(sed -n 's/^left out: //p' "$work/out")"
        skipped=$((skipped + 1))
    else
        echo "  ok      $1"
        passed=$((passed + 1))
    fi
}
try own_text.sh 'bits per byte'
try fine_tune.sh '^[0-9][0-9]*$'
try rl.sh 'round 16: mean reward 0\.9'
try dpo.sh 'likeliest answers: mean reward 0\.9'
try move_run.sh 'the same bits'
try plot.sh 'both/report.html'
# Python without any packages: each is named, sentencepiece for a Llama, but not for a GPT-2.
mkdir -p "$work/llama.cpp/conversion"
for kind in gpt2 llama; do
    python3 -S scripts/recipes/to_gguf.py "$work/llama.cpp" test/golden/$kind/init 2>&1 | sed "s/^/$kind /"
done > "$work/out"
if [ "$(grep -c 'needs torch, transformers, gguf' "$work/out")" = 2 ] && grep -q '^llama .*sentencepiece' "$work/out" &&
    ! grep '^gpt2 .*sentencepiece' "$work/out"; then
    passed=$((passed + 1)) && echo '  ok      to_gguf.py names the packages that are missing'
else
    failed=$((failed + 1)) && echo '  FAILED  to_gguf.py names the packages that are missing' && cat "$work/out"
fi
if grep -n '/tmp/' scripts/recipes/*.sh; then # where another user may have been first
    echo '  FAILED  no recipe has a name of its own in /tmp'
    failed=$((failed + 1))
else
    passed=$((passed + 1))
fi
printf '%s passed, %s failed' $passed $failed
[ $skipped = 0 ] || printf ', %s skipped' $skipped
echo
[ $failed = 0 ]
