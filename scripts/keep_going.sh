#!/bin/sh
# keep_going.sh [OPTIONS] -- COMMAND... - runs a COMMAND that trains on several ranks, and again whenever a rank or a
# node of it has died: from the newest checkpoint, on what is there. COMMAND names --out.
#
#   --restarts N         20: at most so many; none is counted that got further than the one before
#   --hosts FILE         the hostfile in COMMAND ("name slots=8" a line): each start gets one of those that answer
#   --spares FILE        more of them, which take the place of those that do not
#   --fewer "OPTIONS"    for starts on fewer ranks than the first had: "--layout auto --memory 40G"
#
#   scripts/keep_going.sh -- scripts/one_node.sh -n 4 --data my-texts/ --out runs/mine
#   scripts/keep_going.sh --hosts hosts --spares more -- scripts/many_nodes.sh hosts --data /texts --out /shared/run
#
# It ends with COMMAND where that ends by itself or is told to (Ctrl-C, TERM: the ranks save); with 1 where the same
# step has failed three times, which is no node's fault, or no host is left. What happened is in DIR/log.jsonl and
# report.html (events `death`). A host answers if `ssh HOST true` does within 10 seconds ($OMPI_MCA_plm_rsh_agent in
# place of ssh); a rank that hangs is given up after --timeout of ./train.
say() { echo "keep_going: $1" >&2; }
wrong() {
    say "$1; see the head of $0"
    exit 2
}

restarts=20 hosts= spares= fewer=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ $# -gt 1 ] || wrong "$1 needs a value, and -- COMMAND must follow"
    case $1 in
        --restarts) restarts=$2 ;;
        --hosts) hosts=$2 ;;
        --spares) spares=$2 ;;
        --fewer) fewer=$2 ;;
        *) wrong "no option $1" ;;
    esac
    shift 2
done
[ $# -gt 1 ] || wrong "-- COMMAND is missing"
shift
[ "$restarts" -ge 0 ] 2> /dev/null || wrong "--restarts $restarts: expected a number"
for file in "$hosts" "$spares"; do [ -z "$file" ] || [ -r "$file" ] || wrong "no hostfile \"$file\""; done
[ -z "$spares" ] || [ "$hosts" ] || wrong "--spares without --hosts"
out= before=
for word; do
    [ "$before" != --out ] || out=$word
    case $word in --out=*) out=${word#--out=} ;; esac
    before=$word
done
[ "$out" ] || wrong "expected --out DIR in the command: what goes on is the run there"

# ---- hosts

slots_of() { sed 's/#.*//' "$@" | sed -n 's/.*slots=\([0-9]*\).*/\1/p' | awk '{ n += $1 } END { print n + 0 }'; }

# Those that answer, until they have as many slots as the first start had.
choose_hosts() { # choose_hosts NEW-FILE
    : > "$1"
    sed 's/#.*//' "$hosts" ${spares:+"$spares"} | while read -r name rest; do
        [ "$name" ] && [ "$(slots_of "$1")" -lt "$wanted" ] || continue
        if timeout 10 ${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes -o ConnectTimeout=5} "$name" true < /dev/null; then
            echo "$name $rest" >> "$1"
        else
            say "$name does not answer"
        fi
    done
}

# ---- starts

steps() { # the last step in the log
    grep -o '^{"step": [0-9]*, "loss"' "$out/log.jsonl" 2> /dev/null | tail -n 1 | tr -dc 0-9
}
has_checkpoint() { ls "$out"/step-*/DONE > /dev/null 2>&1; }

# The first signal is USR1 to COMMAND, with which ranks save and end (a job in the background ignores INT), the next
# TERM.
told= job=
stop() {
    [ -z "$job" ] || kill -s "${told:-USR1}" "$job" 2> /dev/null
    told=TERM
}
trap stop INT TERM HUP USR1

run() { # run COMMAND...: its status, whatever signals come
    "$@" &
    job=$!
    while :; do
        wait $job
        status=$?
        kill -0 $job 2> /dev/null || break
    done
    job=
}

wanted=$([ -z "$hosts" ] || slots_of "$hosts")
chosen=$hosts again=0 failed=0 furthest=-1
while :; do
    if has_checkpoint; then more="--resume"; else more=; fi
    if [ "$hosts" ] && [ "$again" -gt 0 ]; then
        mkdir -p "$out"
        chosen=$out/hosts
        choose_hosts "$chosen"
        [ -s "$chosen" ] || { say "no host answers"; exit 1; }
        [ "$(slots_of "$chosen")" -ge "$wanted" ] || more="$more $fewer"
    fi
    # The words of COMMAND, one after another to the end: the hostfile's name becomes that of this start's.
    for word; do
        shift
        [ "$hosts" ] && [ "$word" = "${named:-$hosts}" ] && word=$chosen
        set -- "$@" "$word"
    done
    named=$chosen
    # shellcheck disable=SC2086
    run "$@" $more
    died=$(date +%s.%N)
    [ "$status" -ne 0 ] && [ -z "$told" ] || exit "$status"

    at=$(steps)
    if [ "${at:-0}" -gt "$furthest" ]; then furthest=${at:-0} failed=0 again=0; fi
    failed=$((failed + 1)) again=$((again + 1))
    if [ "$failed" -ge 3 ]; then
        say "step $((${at:-0} + 1)) has failed three times (status $status): that is no node's fault"
        exit 1
    fi
    [ "$again" -le "$restarts" ] || { say "status $status after $restarts restarts"; exit 1; }
    export RAGGED_DEATH="$died ${at:-0} $status"
    say "status $status at step ${at:-0}; starts again"
done
