#!/bin/sh
# core.sh CORE TRAIN WEIGHTS_HASH - build/core is small, and trains bit for bit as the trainer does on one rank by the
# reference kernels.
core=$1 train=$2 weights_hash=$3 passed=0 failed=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
claim() { # claim NAME COMMAND...: it must succeed
    name=$1
    shift
    if "$@" > "$work/said" 2>&1; then
        passed=$((passed + 1)) && echo "  ok      $name"
    else
        failed=$((failed + 1)) && echo "  FAILED  $name" && cat "$work/said"
    fi
}
sum() { make -s "$1" | tail -n 1 | tr -cd 0-9; } # of the lines in a list of scripts/core.mk
is_small() {
    make -s core-files core-plumbing core-seams core-stubs core-most
    [ "$(make -s core-files | grep -vc total)" = 15 ] && [ "$(make -s core-rest | wc -w)" = 0 ] &&
        [ "$(sum core-files)" -le "$(sum core-most)" ] && [ "$(sum core-plumbing)" -le 1500 ] &&
        [ "$(sum core-seams)" -le 170 ] && [ "$(make -s core-stubs | awk '{ print $1 }')" -le 60 ]
}
includes_what_is_listed() { # the files that the compiler has read for it, beside the system's
    make -s core-files core-plumbing core-seams core-stubs | awk '$2 != "total" { print $2 }' | sort > "$work/listed"
    grep -E '\.(c|cu)$' "$work/listed" | sed -E "s,(.*)\.cu?\$,$(dirname "$core")/\1.d," | xargs cat |
        grep -oE '(^| )(train_gpt\.cu|(plan|run|kernels|data)/[a-z0-9_/]*\.[ch])' | tr -d ' ' | sort -u > "$work/read"
    comm -23 "$work/read" "$work/listed" > "$work/others"
    cat "$work/others"
    [ -s "$work/read" ] && [ ! -s "$work/others" ]
}
agrees() { # agrees OPTIONS...
    rm -rf "$work/run"
    set -- --data "$work/text" --steps 5 --context 96 --batch-tokens 700 --capacity 250 --warmup 2 "$@"
    "$core" "$@" --eval-every 2 --sample-every 5 --tokens 5 | tee "$work/core"
    "$train" "$@" --eval-every 0 --sample-every 0 --save-every 5 --threads 1 --cpu-isa reference --out "$work/run" \
        > "$work/train" || cat "$work/train"
    loss=$(sed -n 's/.*\(loss hash [0-9a-f]*\).*/\1/p' "$work/train")
    weights=$("$weights_hash" "$work/run/step-000005")
    echo "$loss, $weights"
    [ -n "$loss" ] && [ "$(tail -n 1 "$work/core")" = "$loss, $weights" ]
}
mkdir "$work/text"
awk -v to="$work/text" 'BEGIN { x = 1; for (d = 0; d < 40; d++) for (i = d * 7 % 60 + 3; i > 0; i--) {
    x = (x * 1103515245 + 12345) % 2147483648; printf "w%d ", x % 97 > (to "/" d ".txt") } }'
claim the_core_is_small is_small
claim the_core_includes_only_its_own_files includes_what_is_listed
claim a_gpt2_is_that_of_the_trainer agrees --layers 2 --width 48 --heads 4 --dtype fp32
refuses() { # what it does not have: one line, before anything is read
    ! "$core" --data "$work/text" "$@" > "$work/core" 2>&1 && grep -q "^train: $1: .*try ./train" "$work/core" &&
        [ "$(wc -l < "$work/core")" = 1 ]
}
claim other_options_are_refused eval 'refuses --tp 2 && refuses --resume && refuses --val x && refuses --cp 2'
claim a_llama_is_that_of_the_trainer agrees --arch llama --layers 2 --width 48 --heads 4 --dtype fp32 --clip 0.5
echo "$passed passed, $failed failed"
[ $failed = 0 ]
