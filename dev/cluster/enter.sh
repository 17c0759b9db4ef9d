#!/bin/sh
# enter.sh NODE LINE... - stands in for ssh: runs a command line on a node that run.sh has made. mpirun calls it for
# each node as its plm_rsh_agent; like ssh it joins the words and lets a shell read them again.
# enter.sh NODE -- COMMAND... - the same for words that must stay as they are.
#
# A node is a network namespace. Host name, System V memory and /dev/shm are its own too, so that ranks of two nodes
# cannot share memory even by mistake, and so that the directories of two daemons (named after the host, in TMPDIR) do
# not collide. What lies in /dev/shm stays there for who enters the node next.
node=$1
shift
if [ "$1" = -- ]; then
    shift
else
    set -- sh -c "$*"
fi
exec ip netns exec "$node" unshare --uts --ipc sh -c '
    hostname "$0" && mount --bind "/run/netns/shm-$0" /dev/shm || exit 1
    TMPDIR=/dev/shm exec "$@"' "$node" "$@"
