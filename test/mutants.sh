#!/bin/sh
# mutants.sh [NAME]... - faults put into a copy of the tree, one at a time: each must make a claim of the quick tier
# fail.
#
# A fault is test/mutants/NAME.patch: words, then a unified diff. The words are two lines:
#
#     breaks: what is wrong with it, in a sentence
#     caught by: a quick line of test/suite, perhaps with a TEST_ONLY of its own
#
# The copy, with a build of its own, is build/mutants. There every command passes first; then, for each fault, the patch
# applies, what the command runs is built, the command fails, and the patch is taken back. Without names: all faults.
# `make test-mutants MUTANTS="NAME ..."` is this script, with what the Makefile knows of the machine.
cd "$(dirname "$0")/.." || exit 1
faults=$PWD/test/mutants copy=build/mutants passed=0 failed=0 skipped=0
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset MAKEFLAGS MAKELEVEL MFLAGS

words() { sed -n "1,/^---/s/^$1: //p" "$faults/$2.patch"; } # words KIND NAME

verdict() { # verdict WHAT NAME WORDS
    case $1 in
        ok) passed=$((passed + 1)) ;;
        FAILED) failed=$((failed + 1)) ;;
        skipped) skipped=$((skipped + 1)) ;;
    esac
    printf '  %-7s %s: %s\n' "$1" "$2" "$3"
}

# Whether the command is a quick line of the suite, or some of the claims of one.
is_quick() {
    awk -v command="$1" '
        function only(line) { return match(line, /TEST_ONLY=[^ ]+/) ? substr(line, RSTART + 10, RLENGTH - 10) : "" }
        function rest(line) { sub(/TEST_ONLY=[^ ]+ /, "", line); return line }
        sub(/^quick +[a-z0-9]+ +/, "") && rest($0) == rest(command) {
            if (only($0) == "" || index(only(command), only($0))) found = 1
        }
        END { exit !found }' test/suite
}

programs_of() { tr " '" '\n\n' | grep '^build/release/' | sort -u; }
build() { (cd $copy && make -s $1) > $copy/build/log 2>&1; }
# In the background of nobody: a command that hangs has failed.
runs() { (cd $copy && timeout "${MUTANT_SECONDS:-180}" sh -c "$1") > $copy/build/out 2>&1 < /dev/null; }

# Files that are the same stay, with what was built of them; others are new, also those that a fault was left in.
files_in() { (cd "$1" && find . \( -name .git -o -path ./build -o -path ./runs \) -prune -o -type f -print); }
copy_tree() {
    mkdir -p $copy/build
    files_in $copy | while read -r file; do [ -e "$file" ] || rm "$copy/$file"; done
    files_in . | while read -r file; do
        cmp -s "$file" "$copy/$file" || { mkdir -p "$copy/${file%/*}" && cp "$file" "$copy/$file"; }
    done
}

# Notes each command that fails without a fault, in programs that were built without one.
run_without() {
    for name; do words 'caught by' "$name"; done | sort -u > $copy/build/commands
    build "$(programs_of < $copy/build/commands)" || { cat $copy/build/log && exit 1; }
    while read -r command; do runs "$command" || echo "$command"; done < $copy/build/commands > $copy/build/failing
}

try() { # try NAME
    command=$(words 'caught by' "$1") programs=$(echo "$command" | programs_of)
    [ -n "$(words breaks "$1")" ] || { verdict FAILED "$1" "its patch does not say what it breaks" && return; }
    is_quick "$command" || { verdict FAILED "$1" "not a quick line of test/suite: $command" && return; }
    case "$MPI $EMULATED $command" in
        'no '*ranks.sh* | 'no '*test_strategies* | 'no '*test_pp*) verdict skipped "$1" "no MPI here" && return ;;
        *' no '*emu*) verdict skipped "$1" "no emulator here" && return ;;
    esac
    grep -qxF "$command" $copy/build/failing && verdict FAILED "$1" "fails without it: $command" && return
    if ! (cd $copy && patch -s -p1 --no-backup-if-mismatch -r - < "$faults/$1.patch") > $copy/build/log 2>&1; then
        verdict FAILED "$1" "the patch does not apply any more"
    elif ! build "$programs"; then
        verdict FAILED "$1" "does not compile"
        cat $copy/build/log
    elif runs "$command"; then
        verdict FAILED "$1" "nobody sees that $(words breaks "$1")"
    else
        claim=$(sed -n 's/^ *FAILED  *//p' $copy/build/out | head -n 1)
        verdict ok "$1" "${claim:-no claim, but a status}  <- $command"
    fi
    copy_tree # takes it back
}

[ $# -gt 0 ] || set -- $(cd "$faults" && ls | sed -n 's/\.patch$//p')
for name; do [ -e "$faults/$name.patch" ] || { echo "mutants.sh: no test/mutants/$name.patch" && exit 1; }; done
copy_tree
run_without "$@"
for name; do try "$name"; done
echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]
