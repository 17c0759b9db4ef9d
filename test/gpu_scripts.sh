#!/bin/sh
# gpu_scripts.sh - the scripts that use a GPU's time go through every part without one: gpu_oneshot.sh dry, once whole,
# with a few seconds only, with a program that dies, with a build that fails; gpu_ab.sh on two options on the CPU.
# PYTHON (default: python3) is asked for PyTorch; without it what needs it is skipped.
cd "$(dirname "$0")/.." || exit 1
work=build/gpu_scripts once=build/oneshot python=${PYTHON:-python3} passed=0 failed=0
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
first="versions build smoke-own hopper ops smoke-cudnn" # what must fit; the rest where the build took less
second="versions build peers-llama-3.2-1b peers-gpt2-124m profile"
more="sweep fp8 rollouts peers-qwen3-0.6b profile-qwen3-0.6b profile-llama-3.2-1b long ranks trainings golden trees
      attention-cudnn bench stopped-rank long-rows peer sanitizer"
whole() { OUT=$work/dry scripts/gpu_oneshot.sh --dry; }
all_parts_are_told() {
    cat $once/first/parts $once/second/parts > $work/parts
    for p in $first $second $more; do grep -E "^$p +[0-9-]+ s  (ok|left out: .+)$" $work/parts || return 1; done
}
limits_fit() { # limits_fit PART...: of a call of six minutes
    sum=0
    for p in "$@"; do
        sum=$((sum + $(sed -nE "s/.*(part|gpu|tool) $p ([0-9]+) .*/\2/p" scripts/gpu_oneshot.sh))) || return
    done
    echo "$sum s" && [ $sum -ge 250 ] && [ $sum -le 350 ]
}
both_calls_fit() { limits_fit $first && limits_fit $second; }
speeds_are_there() {
    grep -cE '^(own|again|rows): [1-9][0-9]* tokens/s, status 0' \
        $once/second/trainings.out | grep -x 3 && grep -E '^loss hashes.* same$' $once/second/trainings.out &&
        grep -E '^test_ops TEST_ONLY=embedding: 2 claims hold, 0 skipped' $once/first/ops.out
}
ranks_agree() {
    ! command -v mpirun || [ "$(grep -c 'status 0; done at step 4.*loss hash' $once/second/ranks.out)" = 3 ]
}
# A figure of each training and of the answers; of PyTorch a figure, or that this Python lacks it.
peers_are_there() {
    for p in first/peers-qwen3-0.6b second/peers-llama-3.2-1b second/peers-gpt2-124m; do
        preset=${p#*/peers-}
        torch="PyTorch-$preset: ([1-9][0-9.]* .* 9[0-9]\.[0-9] % filled|left out: ModuleNotFound)"
        grep -E "^$preset: [1-9][0-9]* tokens/s, [0-9.]+ of peak" $once/$p.out &&
            grep -E "^$torch" $once/$p.out || return
    done
    grep -E '^fact: .qwen3-0.6b, rollouts, tokens/s . [1-9][0-9]* ' $once/first/rollouts.out | tr '|' ' ' &&
        grep -E '^transformers: ([1-9][0-9.]* |left out: ModuleNotFound)' $once/first/rollouts.out &&
        grep -E '^fact: .*a document of 256, tokens/s . [1-9]' $once/second/long.out
}
# A table row that failed is shown, whatever stands behind it.
sweeps_are_told() {
    printf '#!/bin/sh\necho "one row FAILED"\nseq 200\necho "3 passed, 1 failed"\nexit 1\n' > $work/tests/test_sweep
    chmod +x $work/tests/test_sweep
    ! TESTS=$PWD/$work/tests OUT=$work/swept scripts/gpu_oneshot.sh --dry sweep &&
        grep -E '^sweep +[0-9]+ s  status 1$' $once/parts/parts && grep '^one row FAILED' $work/swept/parts.md &&
        grep '^| sweep of attention | 3 passed, 1 failed |' $work/swept/parts.md &&
        grep -x 200 $work/swept/parts.txt
}
# What Python lacks is told; what fails there fails the part.
python_that_fails_shows() {
    for error in ModuleNotFoundError ValueError; do
        printf '#!/bin/sh\necho "%s: words" >&2\nexit 1\n' $error > $work/bin/python
        chmod +x $work/bin/python
        PYTHON=$PWD/$work/bin/python scripts/gpu_oneshot.sh --inside yes parts "python_peer name x" > $work/$error
        echo $? >> $work/$error
    done
    tr '\n' ' ' < $work/ModuleNotFoundError | grep '^name: left out: ModuleNotFoundError: words 0 ' &&
        tr '\n' ' ' < $work/ValueError | grep '^name: status 1: ValueError: words 1 '
}
documents_repeat() {
    for copy in a b; do
        python3 dev/peer_documents.py $work/$copy --tokens 5000 --median 30 --most 100 || return
    done
    for kind in .lengths -16.bin -32.bin; do cmp $work/a$kind $work/b$kind || return; done
    [ "$(awk '{ n += $1 } $1 > 100 { bad++ } END { print n, bad + 0 }' $work/a.lengths)" = "5000 0" ] &&
        [ "$(wc -c < $work/a-16.bin)" = 11024 ] && [ "$(wc -c < $work/a-32.bin)" = 21024 ]
}
packed_rows_are_right() {
    for preset in gpt2-124m llama-3.2-1b qwen3-0.6b; do
        kv=2 && [ $preset != gpt2-124m ] || kv=4
        $python dev/peer_torch.py fp32 --preset $preset --layers 2 --width 64 --heads 4 --kv-heads $kv --context 128 \
            --vocab 300 --lengths $work/a.lengths --capacity 256 --batch-tokens 1024 --check || return
    done
}
# A part that its limit ends leaves no program behind.
limits_end_programs() {
    printf '#!/bin/sh\necho $$ > %s\nexec sleep 60\n' $PWD/$work/pid > $work/tests/test_ops
    chmod +x $work/tests/test_ops
    ! TESTS=$PWD/$work/tests SECONDS_IN_ALL=4 OUT=$work/ended scripts/gpu_oneshot.sh --dry ops &&
        grep -E '^ops +[0-9]+ s  ended by its limit' $once/parts/parts || return
    sleep 1
    ! kill -0 "$(cat $work/pid)"
}

# A summary of at most 12,000 characters that ends with the table; at most eight files, all output among them.
results_are_there() {
    [ "$(ls $work/dry | wc -l)" -le 8 ] || return
    [ -s $work/dry/second.jsonl ] && [ -s $work/dry/second-peer.jsonl ] || return
    for c in first second; do
        [ "$(wc -c < $work/dry/$c.md)" -le 12000 ] && tail -n 1 $work/dry/$c.md | grep '^| ' &&
            [ $(($(grep -c '^```' $work/dry/$c.md) % 2)) = 0 ] && grep '^==== build' $work/dry/$c.txt || return 1
    done
    grep '^| limit matmul, TFLOP/s | [0-9.]' $work/dry/second.md && grep '^| two runs of 124M' $work/dry/second.md
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
claim limits_of_what_must_fit_are_six_minutes both_calls_fit
claim speeds_claims_and_one_loss_hash_are_read_from_what_ran speeds_are_there
claim ragged_documents_and_answers_have_figures_beside_pytorch peers_are_there
claim two_ranks_end_with_a_loss_hash ranks_agree
claim results_are_few_files_that_end_with_a_table results_are_there
claim time_by_kernel_and_the_idle_share_are_added_up kernels_are_added_up
claim a_row_of_the_sweep_that_failed_is_in_the_summary sweeps_are_told
claim what_python_lacks_is_told_and_what_fails_there_fails python_that_fails_shows
claim documents_are_the_same_again documents_repeat
if $python -c 'import torch' 2> $work/no-torch; then
    claim packed_rows_have_gradients_of_their_documents_in_pytorch packed_rows_are_right
else
    echo "  skipped packed_rows_have_gradients_of_their_documents_in_pytorch: $(tail -n 1 $work/no-torch)"
fi
claim a_part_that_its_limit_ends_leaves_no_program limits_end_programs
claim a_program_that_dies_fails_its_part_and_hides_no_claim a_dying_program_shows
unset TESTS
claim without_time_parts_are_left_out_by_name without_time
claim a_training_that_fails_fails_its_part failing_trainings_show
claim a_build_that_fails_stops_the_call a_failing_build_stops
claim two_options_are_compared_in_turns ab
claim a_command_that_fails_ends_the_comparison ab_fails
echo "$passed passed, $failed failed"
[ $failed = 0 ]
