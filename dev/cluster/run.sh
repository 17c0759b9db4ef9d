#!/bin/sh
# run.sh [OPTIONS] -- COMMAND... - makes a cluster of several nodes on this machine, runs an MPI program on it with Open
# MPI, removes everything and ends with the program's status. For Linux, as root; needs ip, tc and mpirun.
#
#   --nodes N            2
#   --ranks-per-node N   2
#   --rate RATE          1gbit: of each node's link, in each direction; tc's units
#   --burst BYTES        256kb: what a link may send at once after a pause; at least 64kb, the largest packet here
#   --timeout SECONDS    300; then mpirun ends the job, and the status is not 0
#   --memory SIZE        50%: of a node's /dev/shm
#   --mpirun WORDS       further arguments of mpirun, such as "-x NAME --mca btl_tcp_links 2"
#   --once               run COMMAND once, on node0: a script that calls mpirun itself. $CLUSTER_HOSTS is a hostfile
#
#   dev/cluster/run.sh --nodes 2 --ranks-per-node 2 --rate 1gbit -- ./train --threads 1 --out runs/cluster
#   dev/cluster/run.sh --once -- sh -c 'scripts/many_nodes.sh "$CLUSTER_HOSTS" --threads 1 --out runs/cluster'
#
# All nodes see the files and all cores of this machine: give --threads. At the end it prints what each node has sent
# over its data link, headers included.
#
# A node is a network namespace (enter.sh). Each has two links to a switch, a namespace with two bridges: `data`, shaped
# by tbf on both its ends as a full-duplex port is, and the only one that MPI may use; and `control`, not shaped, for
# mpirun and its daemons. So bytes between nodes cost time, bytes inside a node do not, and a slow link does not delay
# the start. Latency is not added: that needs netem, which many kernels lack; tbf is in all of them.
#
# Nothing is left behind, not even after kill -9 of this script: it moves into a mount namespace and its children into a
# PID namespace. When this script ends the kernel kills the PID namespace's first process, with it all others, and then
# drops what they held: links, namespaces, mounts. The machine's /etc/hosts and /dev/shm are as before; /run/netns may
# be new, and empty. So several clusters may run side by side.
#
# INT, TERM, USR1 and USR2 go to mpirun. Status 77: this machine cannot do it, with one line that says why.
cannot() {
    echo "cluster: $1" >&2
    exit 77
}
wrong() {
    echo "cluster: $1; see the head of $0" >&2
    exit 2
}

nodes=2 ranks=2 rate=1gbit burst=256kb seconds=300 memory=50% more= once=
if [ -z "$CLUSTER_HOME" ]; then
    home=$(cd "$(dirname "$0")" && pwd)
    [ "$(uname)" = Linux ] || cannot "nodes are Linux namespaces"
    [ "$(id -u)" = 0 ] || cannot "only root can make network namespaces"
    for needed in ip tc mpirun unshare setpriv; do
        command -v "$needed" > /dev/null || cannot "no $needed here (Debian: iproute2, openmpi-bin, util-linux)"
    done
    try='ip link add name v0 type veth peer name v1 && ip link add name s0 type bridge &&
        tc qdisc add dev v0 root tbf rate 1gbit burst 64kb limit 1mb'
    unshare --mount --net --pid --fork sh -c "$try" > /dev/null 2>&1 ||
        cannot "this kernel or container does not allow namespaces, veth, bridge or tbf"
    CLUSTER_HOME=$home exec unshare --mount --pid sh "$0" "$@"
fi
# The first child is the PID namespace's init (so no other before it): it dies with this script, and all with it.
setpriv --pdeathsig KILL sleep infinity &
init=$!
trap 'kill -KILL $init; wait' EXIT

while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if [ "$1" = --once ]; then
        once=yes
        shift
        continue
    fi
    [ $# -gt 1 ] || wrong "$1 needs a value, and -- COMMAND must follow"
    case $1 in
        --nodes) nodes=$2 ;;
        --ranks-per-node) ranks=$2 ;;
        --rate) rate=$2 ;;
        --burst) burst=$2 ;;
        --memory) memory=$2 ;;
        --timeout) seconds=$2 ;;
        --mpirun) more=$2 ;;
        *) wrong "no option $1" ;;
    esac
    shift 2
done
[ $# -gt 1 ] || wrong "-- COMMAND is missing"
shift
[ "$nodes" -ge 1 ] 2> /dev/null && [ "$nodes" -le 250 ] && [ "$ranks" -ge 1 ] 2> /dev/null ||
    wrong "--nodes 1 to 250, --ranks-per-node 1 or more"

# ---- the machine as the nodes see it: same files and processes, own namespaces, their names known
set -e
mkdir -p /run/netns
mount -t proc proc /proc
mount -t tmpfs tmpfs /run/netns
mount -t tmpfs tmpfs /dev/shm
echo "127.0.0.1 localhost" > /dev/shm/hosts
for i in $(seq 0 $((nodes - 1))); do
    echo "10.0.1.$((i + 1)) node$i" >> /dev/shm/hosts
    echo "node$i slots=$ranks" >> /run/netns/hostfile
    mkdir /run/netns/shm-node$i
    mount -t tmpfs -o size="$memory" tmpfs /run/netns/shm-node$i
done
mount --bind /dev/shm/hosts /etc/hosts

# ---- switch, links
shape() { # shape NAMESPACE DEVICE; the queue holds more than TCP's windows: nothing is dropped, senders wait
    tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst "$burst" limit 64mb ||
        wrong "tc does not take $rate, $burst"
}
ip netns add switch
for network in control data; do
    ip -n switch link add name $network type bridge
    ip -n switch link set $network up
done
for i in $(seq 0 $((nodes - 1))); do
    ip netns add node$i
    ip -n node$i link set lo up
    for network in control data; do
        port=$network$i subnet=10.0.1
        [ $network = control ] || subnet=10.0.2
        ip -n switch link add name $port type veth peer name $network netns node$i
        ip -n switch link set $port master $network up
        ip -n node$i addr add $subnet.$((i + 1))/24 dev $network
        ip -n node$i link set $network up
    done
    shape switch data$i
    shape node$i data
done
set +e

# ---- the job
enter=$CLUSTER_HOME/enter.sh
unset CLUSTER_HOME
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 MPIEXEC_TIMEOUT="$seconds"
export OMPI_MCA_plm_rsh_agent="$enter" OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_oob_tcp_if_include=control
export OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=data
# Each daemon believes it has all cores of this machine for itself, so ranks must be told to yield while they wait.
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
export CLUSTER_HOSTS=/run/netns/hostfile
echo "cluster: $nodes nodes, $ranks ranks each, links of $rate: $*" >&2
[ "$once" ] || set -- mpirun --hostfile "$CLUSTER_HOSTS" -n $((nodes * ranks)) --map-by slot $more "$@"
# setsid: a terminal's Ctrl-C reaches this script only, which hands it on; mpirun takes a second one for "at once".
setsid "$enter" node0 -- "$@" &
job=$!
for signal in INT TERM USR1 USR2; do trap 'kill -'$signal' $job' $signal; done
while :; do # a signal ends wait, not the job
    wait $job
    status=$?
    kill -0 $job 2> /dev/null || break
done
for i in $(seq 0 $((nodes - 1))); do
    bytes=$(ip netns exec node$i cat /sys/class/net/data/statistics/tx_bytes)
    echo "cluster: node$i sent $bytes bytes" >&2
done
exit $status
