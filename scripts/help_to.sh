#!/bin/sh
# help_to.sh man|bash [TRAIN] - a man page, or what bash completes (and zsh after bashcompinit), made of what
# TRAIN --help all prints. make install calls it.
train=${2:-./train}
case $1 in
man)
    printf '%s\n' '.TH RAGGED 1' '.SH NAME' 'ragged \- train a GPT-2, Llama or Qwen on documents of any length' \
        '.SH SYNOPSIS' '.B ragged' '[options]' '.SH DESCRIPTION' \
        "Without options: a small byte-level model on this machine's C headers." \
        'Counts may end in k, M, G or Ki, Mi, Gi: 10k is 10000, 64Ki is 65536.' '.SH OPTIONS'
    # Words stand behind column 24; a key is deeper than its option; a line without blanks before it begins a group.
    "$train" --help all | awk '
        function say(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); print (text ~ /^[.]/ ? "\\&" : "") text }
        function end_key() { if (deep) print ".RE"; deep = 0 }
        /^[a-z]/ { end_key(); print ".SS"; say($0); next }
        match($0, /^ +/) && RLENGTH < 24 {
            end_key()
            if ((deep = RLENGTH > 2)) print ".RS 4"
            wide = length($0) > 24 && substr($0, 24, 1) == " "
            print ".TP 20"
            say(substr($0, RLENGTH + 1, wide ? 23 - RLENGTH : 200))
            if (wide) say(substr($0, 25))
            next
        }
        /./ { say(substr($0, 25)) }
        END { end_key() }'
    cat << 'END'
.SH EXAMPLES
.nf
ragged                                  the first run
ragged \-\-sample "int main("             use it
ragged \-\-resume                         go on
ragged \-\-data my\-texts/ \-\-out runs/mine  own text
ragged \-\-ranks 2                        ranks of this machine
mpirun \-n 4 ragged                      ranks by MPI
.fi
.SH FILES
.TP
.I runs/N
a run, unless \-\-out says where: log.jsonl, report.html, and checkpoints
.TP
.I runs/N/step\-NNNNNN
a checkpoint: a Hugging Face model with its tokenizer, and the state of the run
.TP
.I ~/.cache/ragged
what later runs use again, tokens and measured costs; $XDG_CACHE_HOME/ragged where that is set
.SH SIGNALS
SIGINT, SIGTERM, SIGUSR1 and SIGHUP (but under nohup): all ranks finish the step, save and end; a second one ends
at once.
.SH EXIT STATUS
.TP
0
done
.TP
1
an error, in one line on standard error, or something that could not be kept
.TP
76
slow ranks were given up (\-\-give\-up\-below): scripts/keep_going.sh starts the others again
.TP
128 + N
ended by signal N, and saved
END
    ;;
bash)
    "$train" --help all | awk '
        /^  --/ { names = names $1 " " }
        /^  --/ && $2 ~ /^[a-z0-9-]+\|/ { gsub(/\|/, " ", $2); values[$1] = $2 }
        END {
            print "_ragged() {\n    local last=${COMP_WORDS[COMP_CWORD-1]} word=${COMP_WORDS[COMP_CWORD]}"
            print "    case $last in"
            for (name in values)
                print "        " name ") COMPREPLY=($(compgen -W \"" values[name] "\" -- \"$word\")); return ;;"
            print "    esac\n    [[ $word == -* ]] && COMPREPLY=($(compgen -W \"" names "\" -- \"$word\"))\n}"
            print "complete -o default -F _ragged ragged train ./train"
        }'
    ;;
*) sed -n '2,3s/^# //p' "$0" >&2; exit 1 ;;
esac
