#!/bin/sh
# ranks.sh N COMMAND... - N ranks of it on this machine, however few cores that has: one thread each, bound to none.
#
# mpirun starts them. With RANKS_MPI=forked, which needs no MPI either, the command forks itself (ranks.h). Where there
# is no mpirun, or with RANKS_MPI=no, this script starts them, with the variables of torchrun: for ranks on GPUs. Then
# RANKS_FILE is memory that they share (ranks.h); all end when one of them fails, and after RANKS_SECONDS (600).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
n=$1
shift
[ "$RANKS_MPI" != forked ] || RANKS_FORKED="$n" exec "$@"
if [ "$RANKS_MPI" != no ] && command -v mpirun > /dev/null 2>&1; then
    exec mpirun --oversubscribe --bind-to none -n "$n" "$@"
fi

RANKS_FILE=$(mktemp) || exit 1
export RANKS_FILE WORLD_SIZE="$n" LOCAL_WORLD_SIZE="$n" MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000))
# A rank that fails ends `timeout`, the parent, which ends its process group: all ranks, with SIGKILL 2 s later.
timeout -k 2 "${RANKS_SECONDS:-600}" sh -c '
    status=0 r=0 ranks=
    trap "status=1" TERM
    while [ $r -lt $WORLD_SIZE ]; do
        { RANK=$r LOCAL_RANK=$r "$@" || { kill $PPID; exit 1; }; } &
        r=$((r + 1)) ranks="$ranks $!"
    done
    for rank in $ranks; do wait $rank || status=1; done # all may have failed before the signal comes
    wait # which ends the one before early
    exit $status' ranks "$@" &
all=$!
trap 'kill $all' INT TERM
wait $all
status=$?
wait $all 2> /dev/null
rm -f "$RANKS_FILE"
[ $status = 0 ]
