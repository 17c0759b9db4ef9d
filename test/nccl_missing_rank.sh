#!/bin/sh
# nccl_missing_rank.sh TEST_COMM_NCCL_WORLDS - of two ranks one does not come to a call of NCCL that waits for it: the
# other one ends in time with one line, and the launcher with a status other than 0.
passed=0 failed=0 out=build/nccl_missing_rank.out
claim() { # claim PROGRAM NAME CALL WORDS
    begun=$(date +%s)
    NCCL_COMM_ID=127.0.0.1:$((21000 + $$ % 9000)) test/ranks.sh 2 "$1" "$3" > $out 2>&1
    status=$?
    took=$(($(date +%s) - begun))
    lines="^train: rank 0 of 2: $4: not done after 2 s (--timeout): a rank was not started"
    if [ $status != 0 ] && [ $took -lt 25 ] && [ "$(grep -c '^train: ' $out)" = 1 ] && grep -q "$lines" $out; then
        passed=$((passed + 1)) && echo "  ok      $2"
    else
        failed=$((failed + 1)) && echo "  FAILED  $2 (status $status, $took s)" && cat $out
    fi
}
claim "$1" opening_does_not_wait_for_a_rank_that_never_comes open "opening NCCL"
claim "$1" the_first_collective_of_a_communicator_does_not_wait_for_a_missing_rank all-reduce all-reduce
claim "$1" the_first_message_between_two_ranks_does_not_wait_for_a_missing_rank send send.receive
claim "$1" closing_does_not_wait_for_a_missing_rank close closing
echo "$passed passed, $failed failed"
[ $failed = 0 ]
