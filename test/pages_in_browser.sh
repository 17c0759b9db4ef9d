#!/bin/sh
# pages_in_browser.sh TRAIN - report.html of a run that was resumed, of two runs, and plan.html, run in a headless
# Chromium: their scripts end without an error, and what they draw is in the document.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$browser" ]; then
    echo "  skipped pages in a browser: no chromium here"
    echo "0 passed, 0 failed, 1 skipped"
    exit
fi
claim() { # claim NAME COMMAND: it ends well
    name=$1
    shift
    if "$@" > "$work/out" 2>&1; then
        passed=$((passed + 1)) && echo "  ok      $name"
    else
        failed=$((failed + 1)) && echo "  FAILED  $name" && tail -n 5 "$work/out"
    fi
}
dom() { # the document behind the scripts, to $work/dom; what they say, to $work/said
    options="--headless --no-sandbox --disable-gpu --enable-logging=stderr --virtual-time-budget=3000"
    timeout 60 "$browser" $options --user-data-dir="$work/profile" --window-size="$2",2000 \
        --dump-dom "file://$1" > "$work/dom" 2> "$work/said"
    [ -s "$work/dom" ] && ! grep -E 'CONSOLE.*(Error|Uncaught)' "$work/said"
}
has() { # has COUNT WORDS: the document has them at least so often
    [ "$(grep -oF "$2" "$work/dom" | wc -l)" -ge "$1" ] || { echo "expected $1 of: $2" && false; }
}

tiny="--layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --eval-every 2 --eval-tokens 512 --threads 1"
cp plan/*.h "$work"
claim "a run" "$1" $tiny --data "$work" --steps 4 --out "$work/a"
claim "goes on with another rate" "$1" --resume --steps 6 --lr 0.002 --out "$work/a"
claim "another run" "$1" $tiny --data "$work" --steps 4 --lr 0.001 --out "$work/b"
claim "both" "$1" --report "$work/a" "$work/b" --out "$work/both"
claim "a plan" "$1" $tiny --data "$work" --explain --out "$work/plan"
staged="test/ranks.sh 2 $1 $tiny --layers 2 --pp 2 --data $work --out $work/staged"
claim "a pipeline" $staged --steps 2
claim "and a plan of it" $staged --explain
chosen="test/ranks.sh 3 $1 $tiny --data $work --machine flexsp-7b --capacity 128 --out $work/chosen"
claim "a run of strategies" $chosen --steps 4 --strategies "tp2+tp1;3xtp1"
mkdir "$work/long" # as many evaluations, and as late, as numbers allow
seq 575807 775806 | sed 's/.*/{"step": 9223372036854&, "val_loss": 2, "val_targets": 9}/' > "$work/long/log.jsonl"
claim "a long log" "$1" --report "$work/long" --out "$work/long"
claim "report.html of a long log runs" dom "$work/long/report.html" 1280
claim "and has its evaluations" has 500 '<td class="left">validation loss 2.0000'
for width in 1280 420; do
    claim "report.html runs at $width pixels" dom "$work/a/report.html" $width
    claim "and has charts with captions" has 6 "<figcaption>"
    claim "and canvases that can be named aloud" has 6 'role="img"'
    claim "and the events: the evaluation before the first step" has 1 '<td class="left">validation loss '
    claim "and the resume with what changed" has 1 "resumed on 1 rank; --steps 4 to 6; --lr "
    claim "and what was saved" has 2 '<td class="left">save: '
    claim "and samples or the end" has 2 '<td class="left">end: done'
    claim "two runs beside each other run at $width pixels" dom "$work/both/report.html" $width
    claim "and name the option that differs" has 1 "<td>--lr</td>"
    claim "which strategy each step chose, at $width pixels" dom "$work/chosen/report.html" $width
    claim "and its name" has 1 'class="chosen-by">tp'
    claim "plan.html runs at $width pixels" dom "$work/plan/plan.html" $width
    claim "and draws the chosen plan" has 1 "flex: "
    claim "plan.html of a pipeline runs at $width pixels" dom "$work/staged/plan.html" $width
    claim "and has a lane for each stage" has 1 "2 stages, played in the cost model"
    claim "beside a step that was measured" has 1 "Step 2 of the run in this directory took"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
