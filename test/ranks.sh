#!/bin/sh
# ranks.sh N COMMAND... - N ranks of it on this machine, however few cores that has: one thread each, bound to none.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
n=$1
shift
exec mpirun --oversubscribe --bind-to none -n "$n" "$@"
