#!/bin/sh
# help_to.sh man|bash [TRAIN] - a man page, or what bash completes (and zsh after bashcompinit), made of what
# TRAIN --help all prints. make install calls it.
train=${2:-./train}
case $1 in
man)
    printf '%s\n' '.TH RAGGED 1' '.SH NAME' 'ragged \- train a GPT-2, Llama or Qwen on documents of any length' \
        '.SH SYNOPSIS' '.B ragged' '[options]' '.SH DESCRIPTION' \
        "Without options: a small byte-level model on this machine's C headers."
    "$train" --help all | sed -n 's/\\/\\e/g; s/-/\\-/g; s/^\([a-z]*\): \(.*\)/.fi\n.SH \1\n\2\n.PP\n.nf/p; /^ /p'
    echo .fi
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
