#!/bin/sh
# check.sh - the house rules that a grep can see: who includes whom, line and file length, C++ validity of train_gpt.cu, options in
# the README. Prints each violation with its place; the last line counts them.
violations=0
complain() { # complain TEXT: one violation a line
    [ -z "$1" ] && return
    printf "%s\n" "$1"
    violations=$((violations + $(printf "%s\n" "$1" | wc -l)))
}

# Who may include whom. Includes of ours are written from the root, with quotes.
layer() { # layer FOLDER ALLOWED-PATTERN
    complain "$(grep -rnE '^#include "' "$1" --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' 2> /dev/null |
        grep -vE "#include \"($2)" | sed "s,\$,   <- $1 may only include $2,")"
}
layer plan 'plan/'
layer data 'data/|plan/'
layer kernels 'kernels/|plan/base\.h'
layer run 'run/|data/|kernels/|plan/'
complain "$(grep -nE '^#include "(dev|test)/' -r train_gpt.cu plan data kernels run | sed 's/$/   <- nobody may include dev or test/')"

# Lines of at most 120 columns; the option table is one row a line.
complain "$(grep -rnE '^.{121,}' train_gpt.cu plan data kernels run test dev scripts Makefile --include='*.c' --include='*.h' --include='*.cu' \
    --include='*.py' --include='*.sh' --include=Makefile | grep -vE '^plan/config.c:[0-9]+: *\{"--' | cut -c 1-100 | sed 's/$/...   <- over 120 columns/')"

# A file holds one idea.
complain "$(find train_gpt.cu plan data kernels run test dev scripts -name '*.[ch]' -o -name '*.cu' -o -name '*.py' | grep -v unicode_classes.h |
    xargs wc -l | awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines   <- over 800" }')"

# Every option stands in the README.
for option in $(sed -n 's/^ *{"\(--[a-z0-9-]*\)".*/\1/p' plan/config.c); do
    grep -q -- "\`$option" README.md || complain "README.md: option $option is not described"
done

# train_gpt.cu is C11 and CUDA C++.
if command -v g++ > /dev/null 2>&1; then
    complain "$(g++ -std=c++17 -Wall -fsyntax-only -I. -x c++ train_gpt.cu 2>&1 | grep -E 'error|warning')"
else
    echo "check: no g++, train_gpt.cu was not tried as C++"
fi

lines=$(cat train_gpt.cu plan/*.[ch] data/*.[ch] run/*.[ch] kernels/*.[ch] kernels/cpu/*.[ch] | wc -l)
echo "check: $lines lines of program, $violations violations"
[ $violations = 0 ]
