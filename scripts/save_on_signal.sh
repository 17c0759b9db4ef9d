#!/bin/sh
# save_on_signal.sh COMMAND... - runs mpirun or srun so that a job that is told to stop saves first.
#
#   INT (Ctrl-C), TERM, HUP, USR1   COMMAND gets USR1, which both launchers hand to every rank at once: the ranks finish
#                                   their step, save and end, however long that takes; the status is the job's
#   a second one                    COMMAND gets TERM: all ranks are gone in a few seconds, saved or not
#
# Left alone, Open MPI 4.1 answers Ctrl-C and TERM thus: CONT to the ranks at once, TERM after 1 second, KILL after one
# more, and on other machines the same 2 seconds later. --mca odls_base_sigkill_timeout N makes both waits N seconds
# long, so it delays TERM too; and when a rank has died mpirun then sits out 2 N seconds. So it stays at its 1 here:
# a rank that dies ends the whole job in 2 to 4 seconds, with a line that names it.
[ $# -gt 0 ] || { echo "usage: $0 COMMAND..." >&2; exit 2; }
command -v "$1" > /dev/null || { echo "${0##*/}: there is no $1 here" >&2; exit 127; }
if [ "$(id -u)" = 0 ] && [ "$1" = mpirun ]; then
    echo "root: with OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, without which mpirun refuses"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# setsid: the terminal sends its Ctrl-C to this script alone.
setsid "$@" &
job=$!
stop() {
    echo "save_on_signal: the ranks finish their step, save and end; once more: at once" >&2
    kill -USR1 $job
    trap 'kill -TERM $job' INT TERM HUP USR1
}
trap stop INT TERM HUP USR1
while :; do # a signal ends wait, not the job
    wait $job
    status=$?
    kill -0 $job 2> /dev/null || exit $status
done
