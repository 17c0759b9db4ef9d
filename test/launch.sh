#!/bin/sh
# launch.sh TEST_LAUNCH - test/ranks.sh without MPI; what scripts/setup.sh installs it says before; what
# cannot be built is left out.
export RANKS_MPI=no
passed=0 failed=0 out=build/launch.out
claim() { # claim NAME COMMAND...: it must succeed
    name=$1
    shift
    if "$@" > $out 2>&1; then
        passed=$((passed + 1)) && echo "  ok      $name"
    else
        failed=$((failed + 1)) && echo "  FAILED  $name" && cat $out
    fi
}
ends_in() { # ends_in SECONDS STATUS COMMAND...
    most=$1 expected=$2 begun=$(date +%s)
    shift 2
    "$@"
    status=$?
    [ $status = "$expected" ] && [ $(($(date +%s) - begun)) -le "$most" ]
}
gone() { # gone COMMAND: what was told to end has ended, within two seconds
    for i in 1 2 3 4 5 6 7 8 9 10; do pgrep -fx "$1" || return 0; sleep 0.2; done
    return 1
}
one_fails() {
    ends_in 10 1 test/ranks.sh 3 sh -c 'test $RANK = 1 || exec sleep 31.4; exit 3' && gone 'sleep 31.4'
}
too_long() { RANKS_SECONDS=1 ends_in 10 1 test/ranks.sh 2 sleep 31.5 && gone 'sleep 31.5'; }
stopped() { RANKS_SECONDS=1 ends_in 10 1 test/ranks.sh 2 sh -c 'kill -STOP $$'; }
ended() {
    test/ranks.sh 2 sleep 31.6 &
    sleep 0.5
    kill $!
    ! wait $! && gone 'sleep 31.6'
}
setup_says_what_pip_installs() { # on a machine that has all but cuobjdump and cudnn-frontend
    root=$PWD machine=$(mktemp -d)
    for command in cc g++ make mpicxx nvcc python3 clang; do
        printf '#!/bin/sh\necho "%s $*" >> "%s/calls"\necho /dev/null\n' $command "$machine" > "$machine/$command"
    done
    for command in uname sed head grep id; do ln -s "$(command -v $command)" "$machine/$command"; done
    chmod +x "$machine"/*
    (cd "$machine" && PATH=$machine /bin/sh "$root/scripts/setup.sh") > "$machine/said"
    pip=$(grep '^python3 ' "$machine/calls")
    echo "$pip" && cat "$machine/said"
    [ "$(echo "$pip" | grep -o '==[0-9]' | wc -l)" = 3 ] && grep -qxF "setup: $pip" "$machine/said"
    status=$?
    rm -rf "$machine"
    return $status
}
leaves_out_cplusplus() { # nothing asks for its compiler, and each of its tests says why it is left out
    asked=$(env -u EMULATED make -n CXX=no-c++ CUDNN=no NVCC= tiers=quick test-programs) &&
        echo "$asked" | grep -q test_plan && ! echo "$asked" | grep '^no-c++' &&
        CXX=no-c++ sh test/run.sh --list quick | grep 'test_cudnn_plans # no C++ compiler'
}
claim without_a_cplusplus_compiler_the_rest_is_built leaves_out_cplusplus
claim setup_says_what_pip_installs_and_its_version setup_says_what_pip_installs
claim ranks_tell_each_other_about_claims test/ranks.sh 3 "$1"
claim a_claim_that_fails_on_one_rank_fails ends_in 10 1 test/ranks.sh 3 "$1" and fail
claim one_rank_that_fails_ends_all one_fails
claim ranks_end_after_their_time too_long
claim a_rank_that_stands_still_ends_after_its_time stopped
claim who_ends_the_script_ends_the_ranks ended
echo "$passed passed, $failed failed"
[ $failed = 0 ]
