#!/bin/sh
# check.sh - tests what run.sh promises: node boundaries are real, links have their rate, statuses and signals arrive,
# nothing is left behind. Takes about 20 seconds; is skipped where run.sh cannot make a cluster.
cd "$(dirname "$0")" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
claim() { # claim WORDS CONDITION...: the condition is a command
    words=$1
    shift
    if "$@"; then
        echo "  ok      $words"
        passed=$((passed + 1))
    else
        echo "  FAILED  $words: $*"
        failed=$((failed + 1))
    fi
}
between() { [ "$1" -le "$2" ] && [ "$2" -le "$3" ]; }
# cluster WORDS...: runs run.sh with them. Its processes have the variable CLUSTER_CHECK.
cluster() { CLUSTER_CHECK=$work timeout 100 ./run.sh "$@" > "$work/out" 2> "$work/err"; }
processes() { grep -slxz "CLUSTER_CHECK=$work" /proc/[0-9]*/environ; }
machine() { ip -br link; ip netns list; cat /proc/self/mounts /etc/hosts; }
await() { # await SECONDS COMMAND...: until it is true
    left=$(($1 * 10))
    shift
    while ! "$@"; do
        [ $left -gt 0 ] || return 1
        left=$((left - 1))
        sleep 0.1
    done
}

cluster -- true
if [ $? = 77 ]; then
    echo "  skipped all: $(cat "$work/err")"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
mpicc -std=c11 -O2 check.c -o "$work/check" || exit 1
machine > "$work/before"

# The rate is a limit: a busy machine may stay below it, so one good run of three suffices. Payload is 1448 of
# 1514 bytes of a packet, 0.956 of the rate; burst lets at most 256 KiB of 32 MiB through at once, 0.8 %.
for rate in 100 400; do
    for try in 1 2 3; do
        ranks_on_node=0 bytes=0 inside_mbit=0 across_mbit=0 both_ways_mbit=0 inside_link_bytes=-1 across_link_bytes=-1
        cluster --rate ${rate}mbit -- "$work/check"
        eval "$(cat "$work/out")"
        [ "$across_mbit" -ge $((rate * 85 / 100)) ] && [ "$both_ways_mbit" -ge $((rate * 85 / 100)) ] && break
    done
    echo "  ${rate} Mbit/s, try $try: inside $inside_mbit, across $across_mbit, both ways $both_ways_mbit each"
    claim "ranks_that_share_memory_are_those_of_a_node" [ "$ranks_on_node" = 2 ]
    claim "bytes_inside_a_node_do_not_cross_its_link" between 0 "$inside_link_bytes" 10000
    claim "bytes_between_nodes_do" between "$bytes" "$across_link_bytes" $((bytes * 105 / 100))
    claim "a_link_has_its_rate" between $((rate * 85 / 100)) "$across_mbit" $((rate * 97 / 100))
    claim "in_each_direction" between $((rate * 85 / 100)) "$both_ways_mbit" $((rate * 97 / 100))
    claim "a_node_inside_is_faster" [ "$inside_mbit" -gt $((2 * rate)) ]
done

# The rank that fails does so last: mpirun ends the others with it.
cluster --nodes 3 --ranks-per-node 1 -- sh -c 'hostname; [ $OMPI_COMM_WORLD_RANK = 2 ] || exit 0; sleep 2; exit 7'
status=$?
claim "the_status_is_the_programs" [ $status = 7 ]
claim "each_node_has_its_name" [ "$(sort -u "$work/out" | tr '\n' ' ')" = "node0 node1 node2 " ]

cluster --once -- sh -c 'mpirun --hostfile "$CLUSTER_HOSTS" hostname'
claim "a_script_that_calls_mpirun_finds_the_nodes" [ "$(sort "$work/out" | tr '\n' ' ')" = "node0 node0 node1 node1 " ]

# The example of its head, as it stands but for its length.
program=$(cd ../.. && realpath "${1:-train}") runner=$PWD/run.sh
mkdir -p "$work/root/scripts"
cp ../../scripts/many_nodes.sh ../../scripts/save_on_signal.sh "$work/root/scripts"
ln -s "$program" "$work/root/train"
short="--steps 2 --eval-every 0 --sample-every 0 --data $PWD"
example=$(sed -n "s|^#   dev/cluster/run.sh --once -- \(.*\)--threads 1|\1--threads 1 $short|p" run.sh)
(cd "$work/root" && eval "timeout 100 '$runner' --once -- $example" > "$work/out" 2> "$work/err")
claim "the_example_of_its_head_trains" grep -q "^done at step 2 of 2" "$work/out"

# Ranks that end with 0 on USR1: run.sh passes it to mpirun, which passes it to all ranks.
rm "$work/out"
CLUSTER_CHECK=$work ./run.sh -- sh -c 'trap "echo told; exit 0" USR1; echo ready; while :; do sleep 0.1; done' \
    > "$work/out" 2> "$work/err" &
job=$!
await 20 sh -c "[ \$(grep -cs ready '$work/out') = 4 ]" 2> /dev/null
kill -USR1 $job
wait $job
status=$?
claim "usr1_reaches_every_rank" [ "$(grep -c told "$work/out") $status" = "4 0" ]

rm "$work/out" # else the last job's output would be read as this one's
CLUSTER_CHECK=$work ./run.sh -- sh -c 'echo ready; sleep 60' > "$work/out" 2> "$work/err" &
job=$!
await 20 sh -c "[ \$(grep -cs ready '$work/out') = 4 ]" 2> /dev/null
started=$(processes | wc -l)
kill -KILL $job
wait $job 2> /dev/null
nobody() { [ -z "$(processes)" ]; }
claim "kill_9_of_the_script_ends_its_${started}_processes" await 5 nobody
claim "which_were_at_least_four_ranks_and_two_daemons" [ "$started" -gt 6 ]
machine > "$work/after"
claim "the_machine_is_as_before" cmp -s "$work/before" "$work/after"

CLUSTER_CHECK=$work setpriv --reuid 65534 ./run.sh -- true 2> "$work/err"
status=$?
claim "without_root_one_line_and_77" [ "$status $(wc -l < "$work/err")" = "77 1" ]

echo "$passed passed, $failed failed"
[ $failed = 0 ]
