#!/bin/sh
# mutants.sh [NAME]... - faults put into a copy of the tree, one at a time: each must make a claim of the quick tier
# fail.
#
# A fault is test/mutants/NAME.patch: words, then a unified diff of one file. The words are two lines, or three:
#
#     breaks: what is wrong with it, in a sentence
#     caught by: a quick line of test/suite, perhaps with a TEST_ONLY of its own
#     claim: the name of the claim that fails, which then runs alone where there is still one of that name
#
# The copy, with a build of its own, is build/mutants. For each fault: its command passes there (once for all faults
# with that command), the patch applies, what the command runs is built, the command fails, and the file is as before.
# Where the file has another name by now, the patch goes to the only one that has the line which it takes out. Without
# names: all faults. `make test-mutants MUTANTS="NAME ..."` is this script, with what the Makefile knows of the machine.
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

# In the background of nobody: a command that hangs has failed.
runs() { (cd $copy && timeout "${MUTANT_SECONDS:-180}" sh -c "$1") > $copy/build/out 2>&1 < /dev/null; }

build() { # build COMMAND: the programs in it
    (cd $copy && make -s $(echo "$1" | tr " '" '\n\n' | grep '^build/release/' | sort -u)) > $copy/build/log 2>&1
}

# Files that are the same stay, with what was built of them; others are new, also those that a fault was left in.
files_in() { (cd "$1" && find . \( -name .git -o -path ./build -o -path ./runs \) -prune -o -type f -print); }
copy_tree() {
    mkdir -p $copy/build
    : > $copy/build/right && : > $copy/build/wrong # commands that pass without a fault, and that do not
    files_in $copy | while read -r file; do [ -e "$file" ] || rm "$copy/$file"; done
    files_in . | while read -r file; do
        cmp -s "$file" "$copy/$file" || { mkdir -p "$copy/${file%/*}" && cp "$file" "$copy/$file"; }
    done
}

passes() { # passes COMMAND, without a fault
    grep -qxF "$1" $copy/build/right && return
    grep -qxF "$1" $copy/build/wrong && return 1
    build "$1" && runs "$1" && echo "$1" >> $copy/build/right && return
    echo "$1" >> $copy/build/wrong
    return 1
}

# The file that a patch is for: the one it names, or the only one that has the line.
file_of() { # file_of NAME
    file=$(sed -n 's|^+++ b/||p' "$faults/$1.patch")
    line=$(sed -n '1,/^@@/d;s/^-//p' "$faults/$1.patch" | head -n 1)
    (cd $copy && { [ -e "$file" ] && grep -qxF -e "$line" "$file"; }) && echo "$file" && return
    (cd $copy && grep -rlxF --include='*.[ch]' --include='*.cu*' -e "$line" train_gpt.cu plan run data kernels) |
        awk '{ file = $0 } END { if (NR == 1) print file }'
}

try() { # try NAME
    whole=$(words 'caught by' "$1") claim=$(words claim "$1") command=$whole
    case $whole in TEST_ONLY=*) claim= ;; esac
    [ -z "$claim" ] || command="TEST_ONLY=$claim $whole"
    [ -n "$(words breaks "$1")" ] || { verdict FAILED "$1" "its patch does not say what it breaks" && return; }
    is_quick "$command" || { verdict FAILED "$1" "not a quick line of test/suite: $command" && return; }
    case "$MPI $EMULATED $command" in
        'no '*ranks.sh* | 'no '*test_strategies* | 'no '*test_pp*) verdict skipped "$1" "no MPI here" && return ;;
        *' no '*emu*) verdict skipped "$1" "no emulator here" && return ;;
    esac
    passes "$command" || { command=$whole && passes "$command"; } ||
        { verdict FAILED "$1" "fails without it, or is not built: $command" && return; }
    file=$(file_of "$1")
    [ -n "$file" ] || { verdict FAILED "$1" "no file has the line that it takes out" && return; }
    cp "$copy/$file" $copy/build/original
    if ! patch -s --no-backup-if-mismatch -r - "$copy/$file" < "$faults/$1.patch" > $copy/build/log 2>&1; then
        verdict FAILED "$1" "the patch does not apply any more"
    elif ! build "$command"; then
        verdict FAILED "$1" "does not compile"
        cat $copy/build/log
    elif runs "$command"; then
        verdict FAILED "$1" "nobody sees that $(words breaks "$1")"
    else
        claim=$(sed -n 's/^ *FAILED  *//p' $copy/build/out | head -n 1)
        verdict ok "$1" "${claim:-no claim, but a status}  <- $whole"
    fi
    cp $copy/build/original "$copy/$file"
}

[ $# -gt 0 ] || set -- $(cd "$faults" && ls | sed -n 's/\.patch$//p')
for name; do [ -e "$faults/$name.patch" ] || { echo "mutants.sh: no test/mutants/$name.patch" && exit 1; }; done
copy_tree
for name; do try "$name"; done
echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]
