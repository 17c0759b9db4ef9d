#!/bin/sh
# run.sh [--list | --programs] TIER... - runs the lines of test/suite that have one of these tiers, or prints them, or
# the programs in them, which the Makefile builds. test/README.md says how to read both.
#
# A line's output goes to build/suite/NUMBER.out; one line is printed for it, and the whole output if it failed.
# A test ends with the line "N passed, N failed" or "N passed, N failed, N skipped"; one that ends without it, or with
# another status than these numbers say, has failed. The last line here adds them up.
#
# From the Makefile: config, whose programs take the place of release's while other configs' lines are left out; CXX,
# the C++ compiler; MPI, EMULATED, AMX: "no" where this machine or compiler has it not, so that the lines which need it
# are skipped. Where both tiers run, some claims (TEST_ONLY) of a program all of whose claims run are left out.
dir=build/suite

# Lines of these tiers: "run CORES COMMAND", or "skip CORES COMMAND # REASON".
selected() {
    command -v clang > /dev/null 2>&1 && clang=yes || clang=no
    cplusplus=$(cd test && echo *.cc | sed 's/\.cc//g; s/ /|/g') # programs of C++
    command -v "${CXX:-c++}" > /dev/null 2>&1 && cplusplus=
    awk -v tiers=" $* " -v config="${config:-release}" -v mpi="$MPI" -v emu="$EMULATED" -v amx="$AMX" -v clang=$clang \
        -v cplusplus="$cplusplus" '
        function command(line) { sub(/^[a-z]+ +[a-z0-9]+ +/, "", line); return line }
        NR == FNR { if ($1 == "all" && index(tiers, " all ")) whole[command($0)] = 1; next }
        /^#/ || NF == 0 { next }
        !($1 ~ /^(quick|all|long|gpu|faults)$/ && $2 ~ /^(1|alone)$/ && NF > 2) {
            print "run 1 echo test/suite:" FNR ": expected TIER CORES COMMAND"
            next
        }
        index(tiers, " " $1 " ") == 0 { next }
        { part = command($0) }
        sub(/^TEST_ONLY=[^ ]+ /, "", part) && part in whole { next } # all of its claims run
        config != "release" && (/build\/(sanitize|race|fuzz)/ || /emu/) { next }
        {
            sub(/^[a-z]+ +/, "")
            sub(/ +/, " ")
            gsub(/build\/release\//, "build/" config "/")
            why = ""
            if (mpi == "no" && /ranks\.sh|cluster|nccl|campaign_ranks/ && !/RANKS_MPI=(no|forked)/) why = "no MPI here"
            if (mpi == "no" && /test_(tp|pp|ranks|planned|slow_ranks|strategies) /) why = "no MPI here"
            if (emu == "no" && /emu/) why = "no C++ compiler or no x86-64, so no emulator"
            if (cplusplus && $0 ~ "/(" cplusplus ")( |$)") why = "no C++ compiler"
            if (amx == "no" && /amx/) why = "the compiler does not know AMX"
            if (clang == "no" && /fuzz/) why = "clang is not installed"
            print (why ? "skip " : "run ") $0 (why ? " # " why : "")
        }' test/suite test/suite
}

now() { # in milliseconds, or whole seconds where date knows no better
    t=$(date +%s%N)
    case $t in
        *N) echo "$(date +%s)000" ;;
        *) echo "${t%??????}" ;;
    esac
}

# one NUMBER: runs that line, and leaves "MILLISECONDS PASSED FAILED SKIPPED COMMAND" in NUMBER.result.
one() {
    read -r what cores command < $dir/$1.line
    out=$dir/$1.out
    reason=${command##* # } command=${command% # *}
    case ${command%% *} in
        */* | *=*) ;;
        *) command -v "${command%% *}" > /dev/null || what=skip reason="${command%% *} is not installed" ;;
    esac
    if [ "$what" = skip ]; then
        echo "  skipped: $reason" > "$out"
        echo "0 0 0 1 $command" > $dir/$1.result
        return
    fi
    [ "$cores" = 1 ] && export OMP_NUM_THREADS=1
    start=$(now)
    timeout "${TEST_SECONDS:-1200}" sh -c "$command" > "$out" 2>&1 < /dev/null
    status=$?
    ms=$(($(now) - start))
    # The last one: what a launcher says about ranks that failed comes after it.
    closing=$(grep -xE '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?' "$out" | tail -n 1 | tr -cd '0-9 ')
    if [ -z "$closing" ]; then
        passed=0 failed=1 skipped=0 note="ended with status $status and no closing line"
    else
        read -r passed failed skipped _ << END
$closing 0
END
        note=""
        if [ "$failed" = 0 ] && [ $status != 0 ]; then
            failed=1 note="status $status"
        elif [ "$failed" = 0 ] && [ $((passed + skipped)) = 0 ]; then
            failed=1 note="no claim at all"
        fi
    fi
    echo "$ms $passed $failed $skipped $command" > $dir/$1.result
    [ "$failed" = 0 ] && words=ok || words="FAILED ($failed)${note:+, $note}:"
    {
        echo "$ms $passed" | awk -v words="$words" -v command="$command" \
            '{ printf "%7.1f s %4d passed, %s %s\n", $1 / 1000, $2, words, command }'
        [ "$failed" = 0 ] || { cat "$out" && echo "        FAILED  $command"; }
    } > $dir/$1.report
    cat $dir/$1.report
}

summary() {
    echo "ten slowest:"
    cat $dir/*.result | sort -rn | head -n 10 | awk '{ s = $1 / 1000; $1 = $2 = $3 = $4 = ""
                                                       sub(/^ +/, ""); printf "%7.1f s  %s\n", s, $0 }'
    for result in $dir/*.result; do
        read -r _ _ _ skipped command < "$result"
        [ "$skipped" = 0 ] || grep -hE '^ *skipped' "${result%.result}.out" | sed "s|\$|   <- $command|"
    done
    [ "$(ls $dir/*.line | wc -l)" = "$(ls $dir/*.result | wc -l)" ] || echo "0 0 1 0 lost" > $dir/lost.result
    cat $dir/*.result | awk '{ passed += $2; failed += $3; skipped += $4 }
        END {
            print passed + 0 " passed, " failed + 0 " failed" (skipped ? ", " skipped " skipped" : "")
            exit failed > 0 || passed == 0
        }'
}

case $1 in
    --one)
        one "$2"
        exit
        ;;
    --list)
        shift
        selected "$@"
        exit
        ;;
    --programs)
        shift
        selected "$@" | grep '^run' | tr " '" '\n\n' | grep '^build/' | sort -u
        exit
        ;;
esac
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset MAKEFLAGS MAKELEVEL MFLAGS
rm -rf $dir
mkdir -p $dir
selected "$@" | awk -v dir=$dir '{ file = sprintf("%s/%03d.line", dir, NR); print > file; close(file) }'
numbers() { grep -l "^[a-z]* $1 " $dir/*.line | sed 's|.*/||; s|\.line||'; }
numbers 1 | xargs -n 1 -P 2 sh test/run.sh --one
numbers alone | xargs -n 1 sh test/run.sh --one
summary
