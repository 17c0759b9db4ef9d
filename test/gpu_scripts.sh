#!/bin/sh
# gpu_scripts.sh - the scripts that use a GPU's time go through every part without one: gpu_oneshot.sh dry, once whole,
# with a few seconds only, with a program that dies, with a build that fails; gpu_ab.sh on two options on the CPU.
cd "$(dirname "$0")/.." || exit 1
work=build/gpu_scripts once=build/oneshot passed=0 failed=0
rm -rf $work && mkdir -p $work/tests $work/bin
claim() { # claim NAME COMMAND...: it must succeed
    name=$1
    shift
    if "$@" > $work/claim.out 2>&1; then
        passed=$((passed + 1)) && echo "  ok      $name"
    else
        failed=$((failed + 1)) && echo "  FAILED  $name" && tail -n 20 $work/claim.out
    fi
}
first="versions build smoke-own smoke-cudnn ops profile bench"
second="versions build peer ranks trainings" # what must fit; the rest where the build had nothing to do
more="long-rows attention-cudnn golden trees stopped-rank sanitizer"
whole() { OUT=$work/dry scripts/gpu_oneshot.sh --dry; }
all_parts_are_told() {
    cat $once/first/parts $once/second/parts > $work/parts
    for p in $first $second $more; do grep -E "^$p +[0-9-]+ s  (ok|left out: .+)$" $work/parts || return 1; done
}
limits_fit() { # limits_fit PART...: of a call of ten minutes
    sum=0
    for p in "$@"; do
        sum=$((sum + $(sed -nE "s/.*(part|gpu|tool) $p ([0-9]+) .*/\2/p" scripts/gpu_oneshot.sh))) || return
    done
    echo "$sum s" && [ $sum -ge 500 ] && [ $sum -le 580 ]
}
both_calls_fit() { limits_fit $first && limits_fit $second; }
speeds_are_there() {
    grep -cE '^(own|again|rows): [1-9][0-9]* tokens/s, status 0' \
        $once/second/trainings.out | grep -x 3 && grep -E '^loss hashes.* same$' $once/second/trainings.out &&
        grep -E '^test_ops TEST_ONLY=embedding: 3 claims hold, 0 skipped' $once/first/ops.out
}
ranks_agree() {
    ! command -v mpirun || [ "$(grep -c 'status 0; done at step 4.*loss hash' $once/second/ranks.out)" = 3 ]
}
# A summary of at most 12,000 characters that ends with the table; at most eight files, all output among them.
results_are_there() {
    [ "$(ls $work/dry | wc -l)" -le 8 ] || return
    [ -s $work/dry/first.jsonl ] && [ -s $work/dry/second-peer.jsonl ] || return
    for c in first second; do
        [ "$(wc -c < $work/dry/$c.md)" -le 12000 ] && tail -n 1 $work/dry/$c.md | grep '^| ' &&
            [ $(($(grep -c '^```' $work/dry/$c.md) % 2)) = 0 ] && grep '^==== build' $work/dry/$c.txt || return 1
    done
    grep '^| limit matmul, TFLOP/s | [0-9.]' $work/dry/first.md && grep '^| two runs of 124M' $work/dry/second.md
}
# Two metrics of each kernel but one; a step is what lies between two of clip_scale_kernel: 6 ms of 10.
kernels_are_added_up() {
    row() { # ID KERNEL METRIC VALUE
        printf '"%d","1","train","host","%s","1","7","(1)","(2)","0","9.0","Command","%s","ns","%s"\n' "$@"
    }
    {
        echo '==PROF== a line of the profiler'
        for id in 1 2 3 4; do
            case $id in 1 | 4) kernel='clip_scale_kernel(float*)' ;; *) kernel='void norm<float, 4>(int)' ;; esac
            row $id "$kernel" dram__throughput.avg 50
            row $id "$kernel" gpu__time_duration.sum 2,000,000
        done
    } > $work/profile.csv
    scripts/gpu_oneshot.sh --inside yes parts "by_kernel $work/profile.csv 10" > $work/profile.out
    grep -E '^ 50.00 % +4000.0 +2 +50 % +0 % +norm$' $work/profile.out &&
        grep -E '^a step: 3 kernels of 6.00 ms' $work/profile.out && grep -E '^fact: .*\| 40.0 \|' $work/profile.out
}
# Its status is that of the part and of the script, and the claims behind the one in which it died are tried.
a_dying_program_shows() {
    cat > $work/tests/test_ops << 'END'
#!/bin/sh
[ "${TEST_ONLY:-embedding}" = embedding ] || { echo "  ok      $TEST_ONLY"; echo "1 passed, 0 failed"; exit 0; }
echo "  ok      add_gives_the_same_bits"
kill -9 $$
END
    chmod +x $work/tests/test_ops
    export TESTS=$PWD/$work/tests
    scripts/gpu_oneshot.sh --inside yes parts "claims test_ops" > $work/died.out
    [ $? != 0 ] && grep 'FAILED test_ops  cast_gives_the_same_bits: status 137' $work/died.out || return
    # all but that one
    hold=$(sed -n 's/^test_ops : \([0-9]*\) claims.*/\1/p' $work/died.out)
    [ "$(grep -c '^CLAIM(' test/test_ops.c)" = $((hold + 1)) ] && ! OUT=$work/dying scripts/gpu_oneshot.sh --dry ops &&
        grep -E '^ops +[0-9]+ s  status 1$' $once/parts/parts
}
failing_trainings_show() {
    for what in "variant broken --nonsense 1" "pair broken --nonsense 1"; do
        ! scripts/gpu_oneshot.sh --inside yes parts "$what" && grep nonsense $once/parts/runs/broken.out || return
    done
}
a_failing_build_stops() {
    printf '#!/bin/sh\nexit 2\n' > $work/bin/make && chmod +x $work/bin/make
    ! PATH=$PWD/$work/bin:$PATH OUT=$work/unbuilt scripts/gpu_oneshot.sh --dry first && [ -s $work/unbuilt/first.md ] &&
        grep -E '^build +[0-9]+ s  status 2$' $once/first/parts && [ "$(wc -l < $once/first/parts)" = 2 ]
}
without_time() {
    begun=$(date +%s)
    SECONDS_IN_ALL=4 OUT=$work/short scripts/gpu_oneshot.sh --dry smoke-own ops bench
    [ $(($(date +%s) - begun)) -le 12 ] && grep -q 'left out: no time left' $once/parts/parts &&
        [ -s $work/short/parts.md ]
}
ab() {
    train=build/release/train
    SECONDS_IN_ALL=1 scripts/gpu_ab.sh $work/ab "$train --device attention=own" "$train --recompute block" --data plan \
        --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 6 &&
        grep -E '^B / A = [0-9]+\.[0-9]+$' $work/ab/summary
}
ab_fails() { ! scripts/gpu_ab.sh $work/ab "build/release/train --layers x" "build/release/train" --steps 1; }
claim a_dry_run_goes_through_both_calls whole
claim every_part_is_ok_or_left_out_with_a_reason all_parts_are_told
claim limits_of_parts_fit_into_ten_minutes both_calls_fit
claim speeds_claims_and_one_loss_hash_are_read_from_what_ran speeds_are_there
claim two_ranks_end_with_a_loss_hash ranks_agree
claim results_are_few_files_that_end_with_a_table results_are_there
claim time_by_kernel_and_the_idle_share_are_added_up kernels_are_added_up
claim a_program_that_dies_fails_its_part_and_hides_no_claim a_dying_program_shows
unset TESTS
claim without_time_parts_are_left_out_by_name without_time
claim a_training_that_fails_fails_its_part failing_trainings_show
claim a_build_that_fails_stops_the_call a_failing_build_stops
claim two_options_are_compared_in_turns ab
claim a_command_that_fails_ends_the_comparison ab_fails
echo "$passed passed, $failed failed"
[ $failed = 0 ]
