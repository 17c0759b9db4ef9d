#!/bin/sh
# keep_going.sh [OPTIONS] -- COMMAND... - runs a COMMAND that trains on several ranks, and again whenever a rank or a
# node of it has died: from the newest state, on what is there. COMMAND names --out.
#
#   --restarts N         20: at most so many; none is counted that got further than the one before
#   --hosts FILE         the hostfile in COMMAND ("name slots=8" a line): each start gets one of those that answer
#   --spares FILE        more of them, which take the place of those that do not
#   --fewer "OPTIONS"    for starts on fewer ranks than the first had: "--layout auto --memory 40G"
#   --grow SECONDS       how often to look for hosts that are back: the run saves, ends and goes on with them
#   --start-within N     600: seconds after which a restart whose ranks are not there is ended (mpirun waits for ever)
#
#   scripts/keep_going.sh -- scripts/one_node.sh -n 4 --data my-texts/ --out runs/mine
#   scripts/keep_going.sh --hosts hosts --spares more -- scripts/many_nodes.sh hosts --data /texts --out /shared/run
#
# Without --fewer a start on fewer ranks keeps its options; where these ranks cannot have that layout, the next one
# looks for another: --layout auto, with the memory that is free here. A host is taken if `ssh HOST true` answers within
# 10 seconds ($OMPI_MCA_plm_rsh_agent in place of ssh), and is left out for good when ranks there have hung (--timeout
# of ./train) or were given up as too slow (--give-up-below).
#
# It ends with COMMAND where that ends by itself or is told to (Ctrl-C, TERM: the ranks save); with 1 where the same
# step has failed three times on the same hosts, which is no node's fault, where no layout fits, or no host is left.
# What happened is in DIR/log.jsonl and report.html (events `death`).
say() { echo "keep_going: $1" >&2; }
wrong() {
    say "$1; see the head of $0"
    exit 2
}
give_up() {
    say "$1"
    exit 1
}

restarts=20 hosts= spares= fewer= grow= within=600
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ $# -gt 1 ] || wrong "$1 needs a value, and -- COMMAND must follow"
    case $1 in
        --restarts) restarts=$2 ;;
        --hosts) hosts=$2 ;;
        --spares) spares=$2 ;;
        --fewer) fewer=$2 ;;
        --grow) grow=$2 ;;
        --start-within) within=$2 ;;
        *) wrong "no option $1" ;;
    esac
    shift 2
done
[ $# -gt 1 ] || wrong "-- COMMAND is missing"
shift
[ "$restarts" -ge 0 ] 2> /dev/null || wrong "--restarts $restarts: expected a number"
[ "${grow:-1}" -gt 0 ] && [ "$within" -gt 0 ] || wrong "--grow, --start-within: expected seconds"
for file in "$hosts" "$spares"; do [ -z "$file" ] || [ -r "$file" ] || wrong "no hostfile \"$file\""; done
[ -z "$spares$grow" ] || [ "$hosts" ] || wrong "--spares and --grow are for --hosts, which is missing"
out= before=
for word; do
    [ "$before" != --out ] || out=$word
    case $word in --out=*) out=${word#--out=} ;; esac
    before=$word
done
[ "$out" ] || wrong "expected --out DIR in the command: what goes on is the run there"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# ---- hosts

slots_of() { sed 's/#.*//' "$@" | sed -n 's/.*slots=\([0-9]*\).*/\1/p' | awk '{ n += $1 } END { print n + 0 }'; }

# Those that answer and are not left out, until they have as many slots as the first start had.
choose_hosts() { # choose_hosts NEW-FILE
    : > "$1"
    sed 's/#.*//' "$hosts" ${spares:+"$spares"} | while read -r name rest; do
        [ "$name" ] && [ "$(slots_of "$1")" -lt "$wanted" ] || continue
        ! grep -qxF "$name" "$work/left-out" 2> /dev/null || continue
        if timeout 10 ${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes -o ConnectTimeout=5} "$name" true < /dev/null; then
            echo "$name $rest" >> "$1"
        else
            say "$name does not answer"
        fi
    done
}

# The host of a rank that others waited for in vain, or that was given up. Ranks say for whom they waited: one that says
# nothing itself hangs. Where all say something a link is dead: of the host for which most of the others waited.
lost_host() { # lost_host FILE
    awk '/nothing moved for|is given up/ {
        speaker = match($0, /rank [0-9]+ of/) ? substr($0, RSTART + 5, RLENGTH - 8) : "nobody"
        spoke[speaker] = 1
        for (; match($0, /rank [0-9]+ \(process [0-9]+ of node [^)]*\)/); $0 = substr($0, RSTART + RLENGTH)) {
            split(substr($0, RSTART, RLENGTH - 1), word, " ")
            host[word[2]] = word[7]
            waits[speaker " " word[2]] = 1
        }
    }
    END {
        for (pair in waits) {
            split(pair, rank, " ")
            if (host[rank[1]] != host[rank[2]]) votes[host[rank[2]]] += rank[2] in spoke ? 1 : 1000
        }
        for (name in votes)
            if (!most || votes[name] > votes[most] || (votes[name] == votes[most] && name > most)) most = name
        if (most) print most
    }' "$1"
}

# ---- starts

steps() { # the last step in the log
    grep -o '^{"step": [0-9]*, "loss"' "$out/log.jsonl" 2> /dev/null | tail -n 1 | tr -dc 0-9
}
starts() { cat "$out"/log*.jsonl 2> /dev/null | grep -c '"event": "start"'; }
has_checkpoint() { ls "$out"/step-*/DONE > /dev/null 2>&1; }

# Of a rank, in MiB: what is free on its GPU, or half of its part of this machine's memory.
memory() {
    free=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits 2> /dev/null | sort -n | head -n 1)
    [ "$free" ] || free=$(awk -v n="$(slots_of "$chosen")" -v hosts="$(grep -c . "$chosen")" \
        '/^MemAvailable/ { print int($2 / 2048 * hosts / n) }' /proc/meminfo)
    echo "${free}M"
}

# The first signal is USR1 to COMMAND, with which ranks save and end (a job in the background ignores INT), the next
# TERM.
told= job= grows=
stop() {
    [ -z "$job" ] || kill -s "${told:-USR1}" "$job" 2> /dev/null
    told=TERM
}
trap stop INT TERM HUP USR1
trap 'grows=yes; [ -z "$job" ] || kill -USR1 $job 2> /dev/null' USR2

# Until there are more hosts than now.
look_for_hosts() {
    while sleep "$grow"; do
        choose_hosts "$work/more" 2> /dev/null
        [ "$(slots_of "$work/more")" -le "$(slots_of "$chosen")" ] || break
    done
    kill -USR2 $$
}
# A launcher whose daemon has died while it starts may wait for it for ever.
end_late_start() {
    sleep "$within" &
    trap "kill $!; exit" TERM # no sleep stays behind
    wait
    [ "$(starts)" = "$began" ] || return
    echo "keep_going: ranks are not there after $within s" >&3
    kill "$job" && sleep 5 && kill -KILL "$job"
} 3>&2 2> /dev/null

run() { # run COMMAND...: its status, whatever signals come; what it says as errors is in $work/said, too
    rm -f "$work/errors"
    mkfifo "$work/errors"
    tee "$work/said" < "$work/errors" >&2 &
    hears=$!
    "$@" 2> "$work/errors" &
    job=$! looks=
    if [ "$grow" ] && [ "$(slots_of "$chosen")" -lt "$wanted" ]; then look_for_hosts & looks=$!; fi
    if [ "$again" -gt 0 ]; then end_late_start & looks="$looks $!"; fi
    while :; do
        wait $job
        status=$?
        kill -0 $job 2> /dev/null || break
    done
    job=
    [ -z "$looks" ] || kill $looks 2> /dev/null
    for i in 1 2 3 4 5; do kill -0 $hears 2> /dev/null && sleep 0.1; done # others may hold the pipe
}

wanted=$([ -z "$hosts" ] || slots_of "$hosts")
chosen=$hosts again=0 failed=0 furthest=-1 anew= refused=1
while :; do
    if has_checkpoint; then more="--resume"; else more=; fi
    if [ "$hosts" ] && [ "$again" -gt 0 ]; then
        mkdir -p "$out"
        cp "$chosen" "$work/hosts"
        chosen=$out/hosts
        choose_hosts "$chosen"
        [ -s "$chosen" ] || { rm -f "$work/left-out" && choose_hosts "$chosen"; } # rather these than none
        [ -s "$chosen" ] || give_up "no host answers"
        cmp -s "$chosen" "$work/hosts" || failed=0
        [ "$(slots_of "$chosen")" -ge "$wanted" ] && [ -z "$anew" ] || more="$more ${fewer:-$anew}"
    fi
    # The words of COMMAND, one after another to the end: the hostfile's name becomes that of this start's. Those that
    # name a layout go where another one is looked for.
    skips=
    for word; do
        shift
        if [ "$skips" ]; then skips=; continue; fi
        [ "$hosts" ] && [ "$word" = "${named:-$hosts}" ] && word=$chosen
        case "${more%% *}$word" in # a run that goes on needs no weights to start from
            --resume--init) skips=yes && continue ;;
            --resume--init=*) continue ;;
        esac
        case "${anew:+new}$word" in
            new--tp | new--pp | new--zero | new--layout | new--strategies | new--capacity) skips=yes ;;
            new--tp=* | new--pp=* | new--zero=* | new--layout=* | new--strategies=* | new--capacity=*) ;;
            *) set -- "$@" "$word" ;;
        esac
    done
    named=$chosen began=$(starts)
    # shellcheck disable=SC2086
    run "$@" $more
    died=$(date +%s.%N)
    if [ "$grows" ] && [ -z "$told" ] && [ "$status" -eq 0 ]; then
        say "hosts are back; goes on with them"
        grows= again=1
        continue
    fi
    [ "$status" -ne 0 ] && [ -z "$told" ] || exit "$status"

    [ "$status" != 76 ] || [ "$hosts" ] || give_up "a rank is given up as too slow: start with fewer, or name --hosts"
    at=$(steps)
    if [ "${at:-0}" -gt "$furthest" ]; then furthest=${at:-0} failed=0 again=0; fi
    [ "$(starts)" = "$began" ] && [ "$status" -gt 128 ] || failed=$((failed + 1)) # else killed at its start
    again=$((again + 1))
    lost=$([ -z "$hosts" ] || lost_host "$work/said")
    if [ "$lost" ]; then
        say "$lost is left out: ranks there have hung or were given up"
        echo "$lost" >> "$work/left-out"
    fi
    # Words of ./train before its first step, but those of a lost rank.
    [ "$(starts)" = "$began" ] && grep '^train: ' "$work/said" | grep -qvE 'ended|moved|warning' || refused=0
    if [ "$hosts" ] && [ "$(slots_of "$chosen")" -lt "$wanted" ] && [ "$refused" -gt 0 ]; then
        [ "$refused" -lt 3 ] || give_up "no layout fits $(slots_of "$chosen") ranks (status $status)"
        anew="--layout auto --memory $(memory)"
    fi
    refused=$((refused + 1))
    [ "$failed" -lt 3 ] ||
        give_up "step $((${at:-0} + 1)) has failed three times (status $status): that is no node's fault"
    [ "$again" -le "$restarts" ] || give_up "status $status after $restarts restarts"
    export RAGGED_DEATH="$died ${at:-0} $status"
    say "status $status at step ${at:-0}; starts again"
done
