#!/bin/sh
# goes_on_in_cluster.sh TRAIN - a run on two nodes of two ranks (dev/cluster) whose second node dies: a spare takes its
# place; when that dies, too, the first goes on alone. The loss is that of a run that nothing happened to, up to
# rounding.
# Skipped, with the reason, where this machine cannot make nodes.
export TRAIN=$1
if [ -z "$CLUSTER_HOSTS" ]; then
    out=$(TMPDIR=/tmp dev/cluster/run.sh --nodes 3 --ranks-per-node 2 --timeout 200 --once -- "$0" "$1" 2>&1)
    status=$?
    if [ $status = 77 ]; then
        echo "  skipped nodes that die: $(echo "$out" | sed -n 's/^cluster: //p' | tail -n 1)"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    [ $status = 0 ] || echo "$out"
    echo "$out" | grep -E '^ +(ok|FAILED)|^keep_going|^[0-9]+ passed'
    exit $status
fi

# ---- on the first node
work=$(mktemp -d /tmp/ragged-nodes-XXXXXX) failed=0
trap 'rm -rf "$work"' EXIT
mkdir "$work/dead"
sed -n 1,2p "$CLUSTER_HOSTS" > "$work/hosts"
sed -n 3p "$CLUSTER_HOSTS" > "$work/spares"
printf '#!/bin/sh\n[ ! -e %s/dead/"$1" ] && exec %s "$@"\n' "$work" "$OMPI_MCA_plm_rsh_agent" > "$work/shell"
chmod +x "$work/shell"
export OMPI_MCA_plm_rsh_agent="$work/shell"
options="--data plan --layers 2 --width 32 --heads 2 --context 64 --batch-tokens 256 --threads 1 --eval-every 0
    --sample-every 0 --save-every 20 --keep 0 --dtype fp32 --plan static --tp 2 --timeout 20 --steps 600"

check() { # check WHAT STATUS
    if [ "$2" = 0 ]; then echo "  ok      $1"; else echo "  FAILED  $1"; failed=$((failed + 1)); fi
}
saves() { # saves STEP: waits until it is there
    for i in $(seq 600); do
        [ ! -e "$work/run/step-$1/DONE" ] || return 0
        sleep 0.1
    done
    return 1
}
dies() { # dies NODE: with all that runs there; it answers no more
    : > "$work/dead/$1"
    ip netns pids "$1" | xargs -r kill -9
    ip -n "$1" link set data down
}

scripts/keep_going.sh --hosts "$work/hosts" --spares "$work/spares" -- \
    mpirun --hostfile "$work/hosts" --map-by slot --bind-to none --wdir "$PWD" "$TRAIN" $options --out "$work/run" \
    > "$work/said" 2>&1 &
job=$!
saves 000060 && dies node1
saves 000200 && dies node2
wait $job
check "the run comes to its end" $?
grep '^keep_going' "$work/said"
[ "$(grep -c '"death"' "$work/run/log.jsonl")" -ge 1 ] && grep -q 'node1 does not answer' "$work/said" &&
    grep -q 'node2 does not answer' "$work/said" && [ "$(cat "$work/run/hosts")" = "node0 slots=2" ]
check "a spare took the first one's place, and one node was left" $?
sed -n 's/.*"death".*"repeats": \([0-9]*\), "seconds": \([0-9.]*\).*/keep_going: \1 steps repeated, \2 s/p' \
    "$work"/run/log*.jsonl
"$TRAIN" $options --tp 1 --out "$work/alone" > /dev/null 2>&1
for run in run alone; do grep -o '^{"step": 600, "loss": [0-9.]*' "$work/$run/log.jsonl" | sed 's/.*: //'; done |
    paste -s -d ' ' | awk '{ d = $1 - $2; exit !(NF == 2 && d < 0.02 && d > -0.02) }'
check "the loss is that of one rank, up to rounding" $?
echo "$((3 - failed)) passed, $failed failed"
[ $failed = 0 ] || tail -n 60 "$work/said"
exit $failed
