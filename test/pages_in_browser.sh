#!/bin/sh
# pages_in_browser.sh TRAIN - report.html of a run that was resumed, of two runs, of logs that are known, and plan.html,
# run in a headless Chromium: their scripts end without an error, and what they draw is in the document.
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
value() { # value PAGE EXPRESSION: the document then has the value of it in the page's script
    sed "/<.body>/d" "$1" > "$work/value.html"
    echo "<script>document.body.append('value ' + JSON.stringify($2))</script></body>" >> "$work/value.html"
    dom "$work/value.html" "${3:-1280}"
}

fits() { # fits PAGE: no wider than its window, and no word of a drawing is cut at its left or right
    value "$1" "(() => {
        let cut = 0;
        const context = CanvasRenderingContext2D.prototype, print = context.fillText;
        context.fillText = function (words, x, y) {
            const n = this.measureText(words).width, behind = { right: 1, center: 0.5 }[this.textAlign];
            const from = x - n * (behind === undefined ? 0 : behind);
            cut += (from < 0) + (from + n > this.canvas.clientWidth);
            print.call(this, words, x, y);
        };
        for (const closed of document.querySelectorAll('details')) closed.open = true;
        dispatchEvent(new Event('resize'));
        return [cut, Math.max(document.documentElement.scrollWidth - innerWidth, 0)];
    })()" "$2"
    has 1 'value [0,0]' || { grep -o 'value [[].*]' "$work/dom" && false; }
}

tiny="--layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --eval-every 2,tokens=512 --threads 1"
cp plan/*/*.h "$work"
long=$(printf 'name%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
claim "a run" "$1" $tiny --data "$work" --steps 4 --out "$work/a"
claim "goes on with another rate" "$1" --resume --steps 6 --lr 0.002 --out "$work/a"
claim "another run" "$1" $tiny --data "$work" --steps 4 --lr 0.001 --out "$work/$long"
claim "both" "$1" --report "$work/a" "$work/$long" --out "$work/both"
claim "a plan" "$1" $tiny --data "$work" --ranks 2 --explain --out "$work/plan"
staged="test/ranks.sh 2 $1 $tiny --layers 2 --pp 2 --data $work --out $work/staged"
claim "a pipeline" $staged --steps 2
claim "and a plan of it" $staged --explain
chosen="test/ranks.sh 3 $1 $tiny --data $work --machine flexsp-7b --capacity 128 --out $work/chosen"
claim "a question" "$(dirname "$1")/dev/simulate" what-if --machine a100-7b h200-8b --ranks 8 --out "$work/asked"
claim "a run of strategies" $chosen --steps 4 --strategies "tp2+tp1;3xtp1"
mkdir "$work/long" # as many evaluations, and as late, as numbers allow
seq 575807 775806 | sed 's/.*/{"step": 9223372036854&, "val_loss": 2, "val_targets": 9}/' > "$work/long/log.jsonl"
claim "a long log" "$1" --report "$work/long" --out "$work/long"
claim "report.html of a long log runs" dom "$work/long/report.html" 1280
claim "and has its evaluations" has 500 '<td class="left">validation loss 2.0000'

# Rank 1 gives work away from step 4 on; lines that a browser cannot read are passed over.
mkdir "$work/known"
awk 'BEGIN {
    print "{\"event\": \"start\", \"at\": 0, \"ranks\": 2, \"straggle\": \" x=4,rank=1 , from=3,to=5; rank=0,x=2\"}"
    for (s = 1; s <= 1000; s++) {
        strategy = s > 700 ? "kind" s : s % 5 ? "tp2+2xtp1" : "4xtp1"
        moved = s > 3 ? 64 : 0
        printf "{\"step\": %d, \"loss\": 2, \"strategy\": \"%s\", \"lr\": null, ", s, strategy
        printf "\"tokens_per_second\": %d, ", 158729 + s
        printf "\"ranks\": {\"compute_ms\": [%d, 2], \"wait_ms\": [1, %s], ", s, (s % 2 ? "null" : "3")
        printf "\"gamma\": [0, 0], \"sent\": [0, %d], \"taken\": [%d, 0], \"speed\": [1, 1]}}\n", moved, moved
        if (s == 8) print "{\"event\": \"end\", \"at\": 8, \"how\": \"\\q\"}\n{\"step\": 9, \"loss\": 1, \"ranks\": 7"
    }
    print "{\"event\": \"death\", \"at\": 8, \"status\": 137, \"repeats\": 3, \"seconds\": 2.5}"
    print "{\"event\": \"from close copies\", \"at\": 8, \"checkpoint\": 4}"
    print "{\"event\": \"sample\", \"at\": 6, \"text\": \"</script><b>words\"}"
}' > "$work/known/log.jsonl"
claim "a log that is known" "$1" --report "$work/known" --out "$work/known"
page="$work/known/report.html"
claim "its page runs" dom "$page" 1280
for words in "rank 1 is made 4 times as slow" "rank 1 is as fast as before" "rank 0 is made 2 times as slow" \
    "rank 1 gives away 64 hidden units"; do
    claim "and says: $words" has 1 "<td class=\"left\">$words</td>"
done
claim "and what deaths cost" has 1 "One death cost 3s: 3s until ranks had started again, 0s for 3 steps repeated."
claim "from which state it went on" has 1 '<td>3</td><td>2.5</td><td>137</td><td>2</td><td>close copies</td>'
claim "at its step" has 1 '<td>4</td><td class="left">rank 1 gives'
claim "and a sample as text" has 1 "&lt;/script&gt;&lt;b&gt;words"
claim "and means of ranks" has 1 '<td>1</td><td>2.00 ms</td><td>3.00 ms</td><td>63.81</td>'
claim "and what each strategy has of the steps" has 1 'tp2+2xtp1: 56.0 % of steps'
claim "of which twelve are named" has 12 'class="chosen-by">'
claim "the last for all others" has 1 'others: 29.1 % of steps'
run="runs[0]" && rank="$run.ranks.ranks[0]"
claim "numbers of the page" value "$page" "[$run.steps.length, $run.columns.length, $run.ranks.columns.length, \
    $rank.compute_ms[0], $rank.compute_ms[499], $rank.mean.compute_ms]"
claim "a bar is the mean of its steps" has 1 'value [1000,1000,500,1.5,999.5,500.5]'
awk 'BEGIN {
    rest = "\"wait_ms\": [0, 0], \"gamma\": [0, 0], \"sent\": [0, 0], \"taken\": [0, 0], \"speed\": [1, 1]}}"
    for (s = 1; s <= 20000; s++)
        printf "{\"step\": %d, \"loss\": 1, \"ranks\": {\"compute_ms\": [%d, 0], %s\n", s, s, rest
}' > "$work/known/log.jsonl"
claim "a log of which some lines are kept" "$1" --report "$work/known" --out "$work/known"
claim "its numbers" value "$page" "[$run.steps.length < 1200, Math.abs($rank.mean.compute_ms - 10000) < 64]"
claim "each line counts as the steps that it stands for" has 1 'value [true,true]'

claim "a bar of shares is full at 100 %" value "$work/asked/what-if.html" \
    "[...document.querySelectorAll('.bar .all')].slice(2).every(
        b => Math.abs(100 * b.firstChild.offsetWidth / b.offsetWidth - parseFloat(b.nextSibling.textContent)) < 1)"
claim "as it says" has 1 'value true'
claim "each rank has a label, of very many some" value "$work/plan/plan.html" \
    "[namedRanks(14), namedRanks(5)]"
claim "and which" has 1 'value [[0,1],[0]]'
for width in 1280 390; do
    claim "report.html runs at $width pixels" dom "$work/a/report.html" $width
    claim "and no plan's gap of one rank" [ "$(grep -c 'Gap of the plan' "$work/dom")" = 1 ] # the script has the words
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
    for fitting in a/report both/report chosen/report known/report plan/plan staged/plan asked/what-if; do
        claim "$fitting.html fits $width pixels" fits "$work/$fitting.html" $width
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
