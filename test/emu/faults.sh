#!/bin/sh
# faults.sh - the mistakes that the emulator is for, put into the real kernels one at a time: a barrier taken out, a
# bound one too far, a wait for a copy forgotten, a shuffle left out, a barrier in a branch, shared memory that was not
# asked for, a transposition forgotten, an address in the wrong space or outside. Each must make a claim of the suite
# fail. Needs what `make test-programs` has built.
cd "$(dirname "$0")/../.." || exit 1
capability=89 kernels=
cxx=${CXX:-g++} work=build/faults passed=0 failed=0
mkdir -p $work

flags() { # flags CONFIG, as in the Makefile
    case $1 in
        release) echo "-O2 -g" ;;
        sanitize) echo "-O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined" ;;
        race) echo "-O1 -g -fsanitize=thread" ;;
    esac
}

libraries=$(make -s emu-libraries)

# build CONFIG TEST FILE: links the test with $work/FILE.cu in the place of kernels/cuda/FILE.cu, in that order.
objects=$(make -s emu-objects)
build() {
    others=""
    for o in $objects; do
        case $o in $3.o) others="$others $work/$o" ;; *) others="$others build/$1/emu/$o" ;; esac
    done
    $cxx -std=c++17 $(flags "$1") -w -Wno-psabi -fno-math-errno -Itest/emu -I. -x c++ -c $work/$3.cu -o $work/$3.o &&
        $cxx $(flags "$1") build/$1/test_on_emu/$2.o build/$1/emu/open.o $others build/$1/ragged.a \
            -rdynamic -o $work/test $libraries
}

# found CLAIM: whether some order of threads makes the claim fail.
found() {
    for order in 2 0 3 1; do
        TSAN_OPTIONS=halt_on_error=1 EMU_CAPABILITY=$capability TEST_ATTENTION=$kernels EMU_ORDER=$order \
            TEST_ONLY=$1 timeout 120 $work/test > $work/out 2>&1 || return 0
    done
    return 1
}

# fault NAME CONFIG TEST CLAIM FILE SED: the claim, which the suite has seen to hold, fails after the edit.
fault() {
    sed "$6" kernels/cuda/$5.cu > $work/$5.cu
    if cmp -s kernels/cuda/$5.cu $work/$5.cu; then
        verdict "$1" "the edit does not apply to $5.cu any more: $6"
    elif ! build "$2" "$3" "$5"; then
        verdict "$1" "the edited $5.cu does not compile"
    elif found "$4"; then
        verdict "$1" ""
    else
        verdict "$1" "not found by $4 ($2)"
    fi
}

verdict() { # verdict NAME WHAT-WENT-WRONG
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        echo "  ok      $1 is found"
        grep -hm1 -E 'emulator:|SUMMARY|runtime error' $work/out | cut -c 1-160 | sed 's/^/            /'
    else
        failed=$((failed + 1))
        echo "  FAILED  $1: $2"
    fi
}

fault a_barrier_missing_after_staging release test_attention aligned_rows attention \
    's|__syncthreads();  // this step.*||'
fault the_same_barrier_as_a_race race test_attention aligned_rows attention 's|__syncthreads();  // this step.*||'
fault a_barrier_missing_before_reuse race test_ops_block layernorm_backward norm \
    's|__syncthreads();  // all have read.*||'
fault a_team_that_does_not_wait_for_the_one_before race test_ops_block layernorm_backward norm \
    's|__syncthreads();  // the next team.*||'
fault the_same_between_queries_and_keys race test_ops_block rotary_backward_passes rotary \
    's|__syncthreads();  // of_warps may be used again||'
fault a_step_ahead_that_never_comes release test_attention heads_that_share_keys attention_backward \
    's/if (next_i < group)/if (next_i <= group)/'
fault a_barrier_missing_in_the_backward_pass race test_attention aligned_rows attention_backward \
    's|__syncthreads();  // this step.s queries are here.*||'
fault a_barrier_in_a_branch release test_ops classifier_matches classifier \
    '0,/__syncthreads();/s//if (threadIdx.x < 32) __syncthreads();/'
fault a_forgotten_wait_for_a_copy release test_attention aligned_rows attention 's/cp_async_wait<0>();//'
fault a_bound_one_too_far sanitize test_matmul fp32_matmuls_are_right column_sum \
    's/n + i \* DOWN < end/n + i * DOWN <= end/'
fault a_shuffle_left_out release test_attention aligned_rows attention \
    's/top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));//'
fault a_value_changed_before_all_have_read_it release test_ops merging_is_exact elementwise \
    's|__syncwarp();  // all lanes have read lse||'
fault shared_memory_that_was_not_asked_for release test_attention aligned_rows attention 's/cuda_allow_shared(.*);//'
fault a_forgotten_transposition release test_matmul fp32_matmuls_are_right matmul \
    's/weight_gradient ? CUBLAS_OP_T : CUBLAS_OP_N/CUBLAS_OP_N/'
fault rows_kept_as_if_shared_memory_were_global release test_ops_block layernorm_matches norm \
    's/keep_pack(kept + c/store_pack(kept + c/'
fault a_result_stored_as_if_it_were_shared release test_ops_block layernorm_matches norm \
    's/store_pack(out + c/keep_pack(out + c/'
fault a_tile_read_where_it_was_copied_from release test_attention aligned_rows attention \
    's/hold_rows<D, M>(held, my_q)/hold_rows<D, M>(held, (const bf16*)a.q)/'
fault a_stage_behind_the_last release test_attention aligned_rows attention \
    's/k_tile = stages + stage \* 2/k_tile = stages + (stage + 1) * 2/'
fault a_tile_between_two_chunks release test_attention aligned_rows attention \
    's/my_q = shared + mine \* D/my_q = shared + mine * D + 4/'
fault rows_copied_from_behind_the_last release test_attention aligned_rows attention \
    's/(size_t)a.ldq, t.n_rows, a.HS/(size_t)a.ldq, QUERY_TILE, a.HS/'
fault keys_copied_from_behind_the_last release test_attention aligned_rows attention \
    's/stages, k, v, t.other, t.n_other, kv/stages, k, v, t.other, KEYS, kv/'
fault the_same_in_the_backward_pass release test_attention aligned_rows attention_backward \
    's/{a.v, a.ldkv}, t.row, t.n_rows, kv/{a.v, a.ldkv}, t.row, KEYS, kv/'
fault a_copy_begun_before_all_have_read_what_it_replaces release test_attention aligned_rows attention \
    's|__syncthreads();  // this step.*||; s|if (D <= MOST_HELD && n_keys ==|__syncthreads(); &|'
fault a_count_that_does_not_start_from_zero release test_attention aligned_rows attention \
    's/i += LIST_THREADS) next\[i\] = 0/i += LIST_THREADS) next[i] += 0/'
fault reads_without_a_bound release test_matmul fp32_matmuls_are_right column_sum \
    's/if (n + i \* DOWN < end) rows/rows/'
fault a_kernel_given_memory_of_the_host release test_matmul fp32_matmuls_are_right column_sum \
    's/(float\*)cuda_scratch(/(float*)malloc(/'
fault a_run_of_ids_without_the_weights_before_it release test_sample the_token_is_where sample \
    's/run), before, draw/run), 0, draw/'
fault a_sum_over_lanes_without_the_first release test_sample the_token_is_where sample \
    's/if (lane >= lanes) sum/if (lane > lanes) sum/'
fault a_softmax_of_the_drawn_ids_alone release test_sample ids_without_text sample \
    's/v < how.V; v += THREADS) total/v < ids; v += THREADS) total/'
fault a_tensor_behind_the_last_of_a_launch release test_ops one_call_steps optimizer \
    's/at + step < k.n/at + step <= k.n/'
fault a_nan_that_passes_a_trial release test_attention_trial a_value_that_is_no_number attention_trial \
    's/!(apart <= tolerance)/apart > tolerance/'
fault a_trial_of_long_documents_alone release test_attention_trial a_little_more_than attention_trial \
    's/i < c->n \&\& !t->refused/i < 0/'
fault a_mark_that_nobody_minds release test_attention_trial a_trial_that_died attention_trial \
    's/errno == ESRCH/errno == EPERM/'

# What Hopper alone has: a twin's rule each.
capability=90 kernels=wgmma claim=aligned_rows many=rows_of_many
fault scores_read_before_they_are_there release test_attention $claim attention_sm90 \
    's/        wgmma_wait<1>();/        wgmma_wait<2>();/'
fault registers_changed_under_a_matmul release test_attention $many attention_sm90 \
    's/        wgmma_wait<0>();$/        wgmma_wait<1>();/'
fault a_matmul_of_unsettled_registers release test_attention $claim attention_sm90 's/    wgmma_fence();//'
fault values_released_while_they_are_read release test_attention $many attention_sm90 \
    '/        bool moved = /{n;N;N;s/\n.*\n/\n/;s/^ *wgmma_wait<0>();\n\(.*\)/\1\n        wgmma_wait<0>();/}'
fault values_of_a_phase_before release test_attention $many attention_sm90 \
    's/mbarrier_wait(sync->v.full + before.stage, (unsigned)before.parity)/mbarrier_wait(sync->v.full, 1)/'
fault barriers_that_tma_does_not_know release test_attention $claim attention_sm90 's/mbarrier_init_fence();//'
fault registers_that_nobody_has release test_attention $claim attention_sm90 \
    's/REGISTERS = D <= 64 ? 160/REGISTERS = D <= 64 ? 168/'
fault a_turn_that_is_not_passed release test_attention $many attention_sm90 \
    's/pass_turn<CONSUMERS>(w, key + KEYS >= seen)/(void)0/'
fault a_turn_that_nobody_takes release test_attention $claim attention_sm90 \
    's/if (!last || w + 1 < CONSUMERS) named/named/'
fault a_map_of_other_rows release test_attention $claim attention_sm90 \
    's/ld \* sizeof(bf16)};/ld * sizeof(bf16) + 8};/'
fault gradients_that_the_other_proxy_does_not_see release test_attention $claim attention_sm90_backward \
    's/            fence_async_proxy();//'
fault gradients_read_before_both_have_written_them release test_attention $claim attention_sm90_backward \
    's/            named_barrier_sync(WRITTEN, .*//'
fault a_slab_in_the_wrong_place release test_attention $many attention_sm90_backward \
    's/at.k + column_of_dq \* KEYS/at.k + column_of_dq/'
fault a_turn_before_the_one_before release test_attention $many attention_sm90_backward \
    's/attention_list(NULL, 0, &keys, KEYS, 1, a, s)/attention_list(NULL, 0, \&keys, KEYS, 0, a, s)/'
fault a_sum_that_begins_twice release test_attention $many attention_sm90_backward \
    's/turn == 0, walk.block/turn >= 0, walk.block/'
fault values_of_the_next_document release test_attention documents_do_not attention_sm90 \
    's/\&maps->v, kv, t.other + key, t.n_other - key/\&maps->v, kv, t.other + key, KEYS/'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
