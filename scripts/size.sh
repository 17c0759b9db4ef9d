#!/bin/sh
# size.sh [SINCE] - lines and files of the program by room: what ./train links, what build/simulate has beside it, the
# core, tests, tools; with SINCE, a commit or tag, the difference to it. The last line is what the budget counts.
#
# Counted are lines of .c, .h, .cu, .cuh; pages' scripts and styles (.js, .css) stand in a line of their own.
since=${1:-$(git describe --tags --abbrev=0 2> /dev/null)}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# A line a file: its room, its lines.
count() { # count FOLDER
    (cd "$1" && find train_gpt.cu plan data kernels run test dev -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \
        -o -name '*.cuh' -o -name '*.cc' -o -name '*.py' -o -name '*.sh' -o -name '*.js' -o -name '*.css' \) |
        grep -vE '^test/golden|__pycache__' | xargs wc -l | awk '
        $2 == "total" { next }
        { room = $2; sub(/\/[^\/]*$/, "", room) }
        $2 ~ /\.(js|css)$/ { room = "pages (js, css)" }
        $2 ~ /^test\// { room = "test" }
        $2 ~ /^dev\// { room = $2 ~ /^dev\/simulate/ ? "dev (simulate)" : "dev" }
        $2 ~ /\.(py|sh)$/ && room != "test" { room = "dev" }
        { print room "\t" $1 }')
}

count . | sed 's/^/now\t/' > "$work/all"
if [ -n "$since" ]; then
    mkdir "$work/then"
    git archive "$since" | tar -x -C "$work/then" || exit 1
    count "$work/then" | sed 's/^/then\t/' >> "$work/all"
fi

sort -k 2,2 "$work/all" | awk -F '\t' -v since="$since" '
    function row(name, n, files, before) {
        printf "%-18s %7d %6d", name, n, files
        if (since) printf "  %+6d", n - before
        printf "\n"
    }
    function part(name) { return name ~ /search$|simulate/ ? 2 : name ~ /^(test|dev)$|^pages/ ? 3 : 1 }
    !($2 in seen) { seen[$2] = 1; order[++rooms] = $2 }
    $1 == "now" { lines[$2] += $3; files[$2]++ }
    $1 == "then" { before[$2] += $3 }
    END {
        printf "%-18s %7s %6s", "room", "lines", "files"
        if (since) printf "  %6s", "since " since
        printf "\n"
        for (p = 1; p <= 3; p++) {
            n = f = b = 0
            for (i = 1; i <= rooms; i++) {
                if (part(order[i]) != p) continue
                row(order[i], lines[order[i]], files[order[i]], before[order[i]])
                n += lines[order[i]]; f += files[order[i]]; b += before[order[i]]
            }
            if (p == 2) row("beside the trainer", n, f, b)
            if (p == 1) { row("what train links", n, f, b); trainer = n }
        }
        print "what train links: " trainer
    }'
