#!/bin/sh
# check.sh - the house rules that a grep can see: who includes whom, line and file length, a complete suite, files that
# documents name, C++ validity of train_gpt.cu. Prints each violation with its place; the last line counts them.
violations=0
complain() { # complain TEXT: one violation a line
    [ -z "$1" ] && return
    printf '%s\n' "$1"
    violations=$((violations + $(printf '%s\n' "$1" | wc -l)))
}
code="train_gpt.cu plan data kernels run"

# Who may include whom. Includes of ours are written from the root, with quotes.
layer() { # layer FOLDER ALLOWED-PATTERN
    complain "$(grep -rnE '^#include "' "$1" --include='*.[ch]' --include='*.cu' --include='*.cuh' |
        grep -vE "#include \"($2)" | sed "s,\$,   <- $1 may only include $2,")"
}
layer plan/base 'plan/base/'
layer plan/model 'plan/(base|model)/'
layer plan/options 'plan/(base|model|options)/'
layer plan/value 'plan/(base|value)/'
layer plan/cost 'plan/(base|model|value|cost)/'
layer plan/step 'plan/(base|value|cost|step)/'
layer plan/layout 'plan/(base|model|value|cost|step|layout)/'
layer plan/search 'plan/(base|model|value|cost|step|layout|published|show|search)/'
layer plan/slow 'plan/(base|model|cost|slow)/'
layer plan/published 'plan/(base|value|cost|step|layout|published)/'
layer plan/show 'plan/(base|show)/'
layer data 'data/|plan/(base|model|options|value|slow)/'
layer kernels 'kernels/|plan/base/'
layer kernels/comm 'kernels/((comm/)|(host|kernels|timer|tree_attention)\.h)|plan/base/'
layer run/model 'run/(model/|run.h)|data/|kernels/|plan/'
layer run 'run/|data/|kernels/|plan/'
complain "$(grep -rnE '^#include "(dev|test)/' $code | sed 's/$/   <- nobody may include dev or test/')"
# The trainer executes; what searches is build/simulate's, and links beside it.
complain "$(grep -rnE '^#include "(plan|run)/search/' $code | grep -vE '^(plan|run)/search/' |
    sed 's/$/   <- the trainer asks build\/simulate through a pipe/')"

# Options stay as they were read: what comes of them is in Run.settled.
readers='^run/(core|files/origin|setup/start|setup/virtual|setup/ranks|setup/cost|step/eval)\.c:'
complain "$(grep -rnE '(->|\.)config\.[a-z_]+ *=[^=]|(^|[ (])Config ?\* ?[a-z]+ = &' run --include='*.[ch]' |
    grep -v 'const Config' | grep -vE "$readers" |
    sed 's/$/   <- options are written where they are read, others into Run.settled/')"

# Lines of at most 120 columns.
complain "$(find $code test dev scripts Makefile -name '*.[ch]' -o -name '*.cu' -o -name '*.css' -o -name '*.js' \
    -o -name '*.py' -o -name '*.sh' -o -name Makefile -o -name '*.mk' -o -name suite |
    xargs grep -nE '^.{121,}' | cut -c 1-100 |
    sed 's/$/...   <- over 120 columns/')"

# The README is for reading: what it leaves out is in the README of a folder, in --help, in dev/results.
complain "$(grep -nE '^.{121,}' README.md | cut -c 1-60 | sed 's/^/README.md:/; s/$/...   <- over 120 columns/')"
[ "$(wc -l < README.md)" -le 130 ] || complain "README.md: $(wc -l < README.md) lines   <- over 130"

# Files that a document names are in the tree: paths, from the root or from the document, and names alone anywhere.
# NAME and MODULE stand for names.
names_in() { # names_in DOCUMENT: a name a line
    grep -oE '(^|[^A-Za-z0-9_/.-])(data|dev|kernels|plan|run|scripts|test)/[A-Za-z0-9_./-]+' "$1" |
        sed -E 's,^[^a-z],,; s,[.]+$,,'
    grep -oE '\]\([^)#:]+' "$1" | cut -c 3-
    grep -oE '`[A-Za-z0-9_-]+\.(c|h|cu|cuh|cc|py|sh|mk)`' "$1" | tr -d '`'
}
missing_files() {
    for document in README.md */README.md dev/LOG.md dev/results/*.md; do
        names_in "$document" | grep -vE 'NAME|MODULE' | sort -u | while read -r name; do
            [ -e "$name" ] || [ -e "$(dirname "$document")/$name" ] ||
                find $code dev scripts test -name "$name" 2> /dev/null | grep -q . ||
                echo "$document: $name   <- no such file"
        done
    done
}
complain "$(missing_files)"

# So are identifiers with a _ or inner capitals, and options, also those in commands: each is a word of a file, or an
# option of build/simulate. A name that ends in _ stands for all that begin so. Words of examples are not looked for.
elsewhere='NAME|MODULE|print[-_]every|^its_name$|^split_special_tokens$'
words_there() {
    grep -rohE -e '--[a-z][a-z0-9-]+|[A-Za-z_][A-Za-z0-9_]*' $code test dev scripts Makefile --exclude='*.md' \
        --exclude-dir=golden --exclude-dir=results --exclude-dir=__pycache__
    sed -n 's/^    {[A-Z]*("\([a-z0-9-]*\)".*/--\1/p' dev/simulate_options.c
}
words_in() { # words_in DOCUMENT: a word a line
    quoted='[A-Za-z][A-Za-z0-9]*_[A-Za-z0-9_]+|[A-Z][a-z0-9]+([A-Z][a-z0-9]+)+'
    grep -oE '`[^`]+`' "$1" | grep -oE "(^|[^A-Za-z0-9_-])($quoted)" | sed 's/^[^A-Za-z]//'
    { grep -oE '`[^`]+`' "$1"; grep '^    ' "$1"; } | grep -oE '(^|[^A-Za-z0-9-])--[a-z][a-z0-9-]*[a-z0-9]' |
        sed 's/^[^-]//'
}
missing_words() {
    for document in README.md */README.md scripts/recipes/README.md dev/LOG.md dev/results/*.md; do
        words_in "$document" | sed "s,^,$document ,"
    done | awk -v elsewhere="$elsewhere" '
        FNR == NR { is[$0] = 1; next }
        $2 ~ elsewhere || is[$2] || was[$0]++ { next }
        $2 ~ /_$/ { for (word in is) if (index(word, $2) == 1) next }
        { print $1 ": " $2 "   <- not in the tree" }' "$words" -
}
missing_keys() { # of options: --cp kind=ring
    for document in README.md */README.md scripts/recipes/README.md dev/LOG.md dev/results/*.md; do
        { grep -oE '`--[^`]+`' "$document"; grep -E '^    .* --' "$document"; } |
            grep -oE -e '--[a-z][a-z-]*[ =]([^ "=]*,)?[a-z-]+=' | sed -E 's/[ =]([^ ]*,)?/ /; s/=$//' | sort -u |
            while read -r key; do
                grep -q "\"$key\"" plan/options/config.c || echo "$document: $key=   <- no such key of an option"
            done
    done
}
complain "$(missing_keys)"
words=$(mktemp)
trap 'rm -f "$words"' EXIT
words_there > "$words"
complain "$(missing_words)"

# A file holds one idea.
complain "$(find $code test dev scripts -name '*.[ch]' -o -name '*.cu' -o -name '*.py' -o -name '*.js' | xargs wc -l |
    awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines   <- over 800" }')"

# Every test program and every fuzzer is in the suite.
for file in test/test_*.c test/test_*.cc test/fuzz/fuzz_*.c; do
    name=${file##*/}
    grep -qE "/${name%.c*}( |\$)" test/suite || complain "test/suite: ${name%.c*} is not in it"
done

# train_gpt.cu is C11 and C++.
if command -v g++ > /dev/null 2>&1; then
    complain "$(g++ -std=c++17 -Wall -fsyntax-only -I. -x c++ train_gpt.cu 2>&1 | grep -E 'error|warning')"
else
    echo "check: no g++, so train_gpt.cu was not tried as C++"
fi

lines=$(sh scripts/size.sh | sed -n 's/^what train links: //p') most=$(make -s size-most)
[ "$lines" -le "$most" ] ||
    complain "what train links has $lines lines   <- over $most (size_most in the Makefile); make size SINCE=COMMIT"
echo "check: $lines lines that train links, $violations violations"
[ $violations = 0 ]
