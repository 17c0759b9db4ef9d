#!/bin/sh
# one_node.sh [-n RANKS] OPTIONS... - trains on this machine, one rank for each GPU; without GPUs with 2 ranks
# on its CPU. OPTIONS are ./train's. Ctrl-C saves and ends, see save_on_signal.sh.
#
#   scripts/one_node.sh --data my-texts/ --out runs/mine
#   scripts/one_node.sh -n 4 --device cpu --resume --out runs/mine       on another number of ranks
#   scripts/keep_going.sh -- scripts/one_node.sh --out runs/mine         starts again when a rank has died
export RAGGED_LAUNCHER="$0" # what ./train says to go on with
root=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$root/train" ] || { echo "one_node: there is no $root/train; run make first" >&2; exit 1; }
if [ "$1" = -n ]; then
    ranks=$2
    RAGGED_LAUNCHER="$0 -n $2"
    shift 2 || exit 2
elif [ -n "$CUDA_VISIBLE_DEVICES" ]; then # which nvidia-smi does not look at
    ranks=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .)
else
    ranks=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU')
    [ "$ranks" -gt 0 ] || ranks=2
fi

# MPI waits by spinning. mpirun tells ranks to yield only when it sees by itself that cores are fewer; where a container
# or a host list hides that, a message of microseconds takes tens of milliseconds.
cores=$(nproc)
if [ "$ranks" -gt "$cores" ]; then
    echo "one_node: $ranks ranks share $cores cores, so they yield while they wait (OMPI_MCA_mpi_yield_when_idle=1)"
    export OMPI_MCA_mpi_yield_when_idle=1
fi
# --bind-to none: mpirun -n 2 would bind each rank to a single core, with all its threads; ./train divides the cores.
# --oversubscribe only permits: mpirun counts cores, a machine may run two threads on each.
exec "$root/scripts/save_on_signal.sh" mpirun -n "$ranks" --oversubscribe --bind-to none "$root/train" "$@"
