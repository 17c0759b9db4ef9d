#!/bin/sh
# deaths_in_cluster.sh TRAIN [RUNS] [DEATHS] [SEED] - runs on three nodes of two ranks (dev/cluster) in which ranks,
# nodes, launchers, links and disks die at random, under scripts/keep_going.sh with close copies: each comes to its end,
# no checkpoint is lost, few steps are done twice, and the loss is that of one rank which nothing happened to.
#
# RUNS (4) are with --tp 2, --pp 2, --zero 3, --strategies, and so on; DEATHS (5) a run, of a kind each that SEED (1)
# says; KIND=rank: all of this one. TABLE=FILE: a line a death: run, kind, seconds until the job had ended, until ranks
# had started again, until their first step.
# Skipped, with the reason, where this machine cannot make nodes.
export TRAIN=$1 RUNS=${2:-4} DEATHS=${3:-5} SEED=${4:-1}
if [ -z "$CLUSTER_HOSTS" ]; then
    out=$(TMPDIR=/tmp dev/cluster/run.sh --nodes 3 --ranks-per-node 2 --memory 256m --timeout 3000 --once -- \
        "$0" "$@" 2>&1)
    status=$?
    if [ $status = 77 ]; then
        echo "  skipped nodes that die: $(echo "$out" | sed -n 's/^cluster: //p' | tail -n 1)"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    [ $status = 0 ] || echo "$out" | tail -n 200
    echo "$out" | grep -E '^ +(ok|FAILED)|^ {4}|^[0-9]+ passed'
    exit $status
fi

# ---- on the first node
work=$(mktemp -d /tmp/ragged-deaths-XXXXXX) passed=0 failed=0 every=25 far=100 steps=$((DEATHS * 200 + 100)) seed=$SEED
[ -n "$KEEP" ] || trap 'rm -rf "$work"' EXIT
enter=$OMPI_MCA_plm_rsh_agent
mkdir "$work/dead"
printf '#!/bin/sh\n[ ! -e %s/dead/"$1" ] && exec %s "$@"\n' "$work" "$enter" > "$work/shell"
chmod +x "$work/shell"
export OMPI_MCA_plm_rsh_agent="$work/shell"
cp -r plan "$work/text"
options="--data $work/text --layers 2 --width 32 --heads 4 --context 64 --batch-tokens 1024 --threads 1 --eval-every 0
    --sample-every 0 --save-every $far --keep 0 --dtype fp32 --plan static --timeout 4 --steps $steps"

check() { # check WHAT STATUS
    if [ "$2" = 0 ]; then
        echo "  ok      $1" && passed=$((passed + 1))
    else
        echo "  FAILED  $1" && failed=$((failed + 1))
    fi
}
random() { # random N: 0 .. N - 1
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    chance=$((seed / 65536 % $1))
}
ranks_on() { # ranks_on NODE: processes
    for p in $(ip netns pids "$1"); do [ "$(cat /proc/$p/comm 2> /dev/null)" = "${TRAIN##*/}" ] && echo "$p"; done
}
comes() { # comes SECONDS COMMAND...: waits until it is true
    left=$(($1 * 20))
    shift
    until "$@"; do
        [ $left -gt 0 ] || return 1
        left=$((left - 1))
        sleep 0.05
    done
}
deaths() { cat "$out"/log*.jsonl 2> /dev/null | grep -c '"event": "death"'; }
ends() { grep -c '^keep_going: status' "$said"; }
trains() { tail -n 1 "$out/log.jsonl" 2> /dev/null | grep -q '^{"step": [0-9]*, "loss"'; }
is_over() { ! kill -0 $job 2> /dev/null; }
more_than() { [ "$($1)" -gt "$2" ] || is_over; }
trains_or_over() { trains || is_over; }
now() { date +%s.%N; }

# ---- ways to die

kill_rank() { # kill_rank NODE SIGNAL: one of its ranks
    random 2
    victim=$(ranks_on "$1" | sed -n "$((chance + 1))p")
    [ -z "$victim" ] || kill "-$2" "$victim" 2> /dev/null
}
lose_node() { # with its memory; it is back four seconds later
    : > "$work/dead/$1"
    ip netns pids "$1" | xargs -r kill -9 2> /dev/null
    ip -n "$1" link set data down
    $enter "$1" -- rm -rf /dev/shm/close
    (sleep 4 && ip -n "$1" link set data up && rm "$work/dead/$1") &
}
is_saving() { ls -d "$out"/step-*.tmp /run/netns/shm-node*/close/*/*/*.tmp > /dev/null 2>&1; }
starts_again() { [ "$(ranks_on node0 | wc -l)" -gt 0 ]; }
die() { # die KIND
    random 2
    node=node$((chance + 1))
    case $1 in
        rank) random 3 && kill_rank node$chance KILL ;;
        node) lose_node $node ;;
        launcher) for p in $(ip netns pids $node); do
            [ "$(cat /proc/$p/comm)" != orted ] || kill -9 "$p"
        done ;;
        link) ip -n $node link set data down && (sleep 7 && ip -n $node link set data up) & ;;
        hang) random 3 && kill_rank node$chance STOP ;;
        disk) $enter $node -- sh -c 'dd if=/dev/zero of=/dev/shm/full bs=1M count=1000 2> /dev/null'
            (sleep 1 && $enter $node -- rm -f /dev/shm/full) & ;;
        saving) comes 5 is_saving
            began=$(now)
            random 3 && kill_rank node$chance KILL ;;
        restart) kill_rank node0 KILL
            comes 10 more_than ends "$ended" && comes 10 starts_again && sleep 0.2 && kill_rank $node KILL ;;
        two) kill_rank node0 KILL && lose_node $node ;;
    esac
}
kinds="rank node launcher link hang disk saving restart two"

one_death() {
    random 9
    kind=${KIND:-$(echo $kinds | cut -d ' ' -f $((chance + 1)))}
    before=$(deaths) ended=$(ends) began=$(now)
    die "$kind"
    if [ "$kind" != disk ]; then
        comes 20 more_than ends "$ended"
        gone=$(now)
        comes 50 more_than deaths "$before"
        started=$(now)
    else
        sleep 2
        gone=$(now) started=$gone
    fi
    comes 30 trains_or_over
    ! is_over || return
    repeats=$(cat "$out"/log*.jsonl | sed -n 's/.*"event": "death".*"repeats": \([0-9]*\).*/\1/p' | sort -n | tail -n 1)
    echo "$name $kind $began $gone $started $(now)" |
        awk '{ printf "%-12s %-9s %6.1f %6.1f %6.1f\n", $1, $2, $4 - $3, $5 - $4, $6 - $5 }' | tee -a "$work/table"
}

one_run() { # one_run NUMBER
    case $(($1 % 4)) in
        0) name=tp layout="--tp 2" ;;
        1) name=pp layout="--pp 2" ;;
        2) name=zero layout="--zero 3" ;;
        3) name=strategies layout="--capacity 512 --strategies" list="6xtp1; 3xtp2" ;;
    esac
    [ $name = strategies ] || list=
    out=$work/$name-$1 said=$work/said-$1
    : > "$said"
    scripts/keep_going.sh --hosts "$CLUSTER_HOSTS" --grow 2 --restarts 30 --start-within 15 -- \
        mpirun --hostfile "$CLUSTER_HOSTS" --map-by slot --bind-to none --wdir "$PWD" "$TRAIN" $options $layout \
        ${list:+"$list"} --close-copy /dev/shm/close,every=$every --out "$out" >> "$said" 2>&1 &
    job=$!
    comes 30 trains
    for death in $(seq "$DEATHS"); do
        random 20
        sleep "$(echo $chance | awk '{ print 0.7 + $1 / 20 }')"
        is_over || one_death
    done
    wait $job
    check "$name-$1 comes to its end" $?
    wait # for nodes and links that come back
    lost=$(for step in $(seq $far $far "$steps"); do
        [ -e "$out/$(printf 'step-%06d/DONE' "$step")" ] || echo "$step"
    done)
    [ -z "$lost" ]
    check "no checkpoint is lost $lost" $?
    [ "${repeats:-0}" -le $((far + every)) ]
    check "at most ${repeats:-0} steps are done twice" $?
    grep -ho '^{"step": '"$steps"', "loss": [0-9.]*' "$out/log.jsonl" "$work/alone/log.jsonl" | sed 's/.*: //' |
        paste -s -d ' ' | awk '{ d = $1 / $2 - 1; exit !(NF == 2 && d < 0.01 && d > -0.01) }'
    check "the loss is that of one rank, up to rounding" $?
    sed -n 's/.*"death".*"repeats": \([0-9]*\), .*/\1/p' "$out"/log*.jsonl | sort -n | paste -s -d ' ' |
        sed 's/^/    steps repeated: /'
}

"$TRAIN" $options --out "$work/alone" > /dev/null 2>&1
for number in $(seq 0 $((RUNS - 1))); do one_run "$number"; done
[ -z "$TABLE" ] || cp "$work/table" "$TABLE"
sed 's/^/    /' "$work/table"
echo "$passed passed, $failed failed"
[ $failed = 0 ] || tail -n 60 "$work"/said-*
exit $failed
