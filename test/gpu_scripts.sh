#!/bin/sh
# gpu_scripts.sh - the scripts that use a GPU's time go through every part without one: gpu_oneshot.sh dry, once whole
# and once with a few seconds only; gpu_ab.sh on two options on the CPU.
cd "$(dirname "$0")/.." || exit 1
work=build/gpu_scripts passed=0 failed=0
mkdir -p $work
claim() { # claim NAME COMMAND...: it must succeed
    name=$1
    shift
    if "$@" > $work/claim.out 2>&1; then
        passed=$((passed + 1)) && echo "  ok      $name"
    else
        failed=$((failed + 1)) && echo "  FAILED  $name" && tail -n 20 $work/claim.out
    fi
}
parts="versions build smoke-own smoke-cudnn ops attention attention-cudnn golden trainings profile bench train-and-peer
ranks stopped-rank sanitizer"
all_parts_are_told() { for p in $parts; do grep -E "^$p +[0-9-]+ s  (ok|left out: .+)$" "$1" || return 1; done; }
speeds_are_there() {
    grep -cE '^(own|bias|all-epilogues|rows|long-rows): [1-9][0-9]* tokens/s, status 0' $work/dry/trainings.out |
        grep -x 5 && grep -E '^test_ops : 4 claims hold, 0 skipped' $work/dry/ops.out
}
ranks_agree() { ! command -v mpirun || [ "$(grep -c 'status 0; done at step 4.*loss hash' $work/dry/ranks.out)" = 3 ]; }
it_is_short() { [ "$(wc -c < $work/dry/summary.md)" -le 12000 ] && grep '^## bench' $work/dry/summary.md; }
without_time() {
    begun=$(date +%s)
    SECONDS_IN_ALL=4 scripts/gpu_oneshot.sh --dry $work/short
    [ $(($(date +%s) - begun)) -le 12 ] && grep -q 'left out: no time left' $work/short/parts &&
        [ -s $work/short/summary.md ]
}
ab() {
    train=build/release/train
    SECONDS_IN_ALL=1 scripts/gpu_ab.sh $work/ab "$train --attention own" "$train --recompute block" --data plan \
        --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 6 &&
        grep -E '^B / A = [0-9]+\.[0-9]+$' $work/ab/summary
}
ab_fails() { ! scripts/gpu_ab.sh $work/ab "build/release/train --layers x" "build/release/train" --steps 1; }
claim a_dry_run_goes_through_every_part scripts/gpu_oneshot.sh --dry $work/dry
claim every_part_is_ok_or_left_out_with_a_reason all_parts_are_told $work/dry/parts
claim speeds_and_claims_are_read_from_what_ran speeds_are_there
claim two_ranks_end_with_a_loss_hash ranks_agree
claim the_summary_has_at_most_12000_characters it_is_short
claim without_time_parts_are_left_out_by_name without_time
claim two_options_are_compared_in_turns ab
claim a_command_that_fails_ends_the_comparison ab_fails
echo "$passed passed, $failed failed"
[ $failed = 0 ]
