#!/bin/sh
# many_nodes.sh HOSTFILE OPTIONS... - trains on several nodes. HOSTFILE has a line for each, "name slots=8": as many
# ranks as it has GPUs. OPTIONS are ./train's. Ctrl-C saves and ends, see save_on_signal.sh.
#
#   scripts/many_nodes.sh hosts --data /shared/texts --out /shared/runs/mine
#   NETWORK=eth0 scripts/many_nodes.sh hosts ...           or NETWORK=10.1.0.0/16, where names of interfaces differ
#   RANKS=6 scripts/many_nodes.sh hosts ...                fewer than there are slots
#   scripts/keep_going.sh --hosts hosts -- scripts/many_nodes.sh hosts ...    starts again when a rank or node has died
#
# What the nodes must have in common:
#   - ssh without a password from this one to all others, and the same Open MPI;
#   - this program, the working directory, --data and --out at the same paths: every rank reads documents and writes its
#     part of a checkpoint itself, so --out is on a file system that all of them share (NFS does);
#   - a network. Open MPI tries all interfaces that are up. docker0 and virbr0 have the same address on each node and
#     lead nowhere, so that jobs hang in their first message: they are excluded. NETWORK names the one to use, or
#     Open MPI's own variables do.
root=$(cd "$(dirname "$0")/.." && pwd)
usage() {
    echo "many_nodes: $1; see the head of $0" >&2
    exit 2
}
[ -x "$root/train" ] || usage "there is no $root/train, run make first"
[ -r "$1" ] || usage "no hostfile \"$1\""
hosts=$1
export RAGGED_LAUNCHER="${NETWORK:+NETWORK=$NETWORK }${RANKS:+RANKS=$RANKS }$0 $1" # what ./train says to go on with
shift

# ssh hands no environment on. mpirun sends its own variables (OMPI_...), and those that -x names.
words=
for name in $(env | sed -n -E 's/^((NCCL|OMP|CUDA|RAGGED)_[A-Z0-9_]+|LD_LIBRARY_PATH)=.*/\1/p'); do
    words="$words -x $name"
done
if [ -n "$NETWORK" ]; then
    words="$words --mca btl_tcp_if_include $NETWORK --mca oob_tcp_if_include $NETWORK"
    case $NETWORK in
        */*) ;; # NCCL takes names only
        *) words="$words -x NCCL_SOCKET_IFNAME=$NETWORK" ;;
    esac
else
    # Open MPI takes a list of those to use, or one of those not to; the environment may name some to use.
    nowhere=127.0.0.0/8,docker0,virbr0
    [ "$OMPI_MCA_btl_tcp_if_include" ] || words="$words --mca btl_tcp_if_exclude $nowhere"
    [ "$OMPI_MCA_oob_tcp_if_include" ] || words="$words --mca oob_tcp_if_exclude $nowhere"
fi
# --map-by slot: neighbours in rank share a node, which groups of ranks rely on. --bind-to none: see one_node.sh.
exec "$root/scripts/save_on_signal.sh" mpirun --hostfile "$hosts" ${RANKS:+-n "$RANKS"} --map-by slot --bind-to none \
    --wdir "$PWD" $words "$root/train" "$@"
