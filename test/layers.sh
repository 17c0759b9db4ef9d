#!/bin/sh
# layers.sh - the trainer is read, and links, a layer at a time (README.md, a reading tour): whatever an object needs of
# ours is defined in its layer or one below.
#
# Only the table `mechanisms` and the lines of a step beside it (run/core.h) look up: there a program says which layers
# it has (run/core_stubs.c: the core alone).
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
core=$(make -s core-files core-plumbing | sed -n 's/.* \([a-z_/0-9]*\)\.cu\{0,1\}$/\1/p' | paste -s -d '|')

# From below: a layer, and the files that it has beside those of the layers before.
cat > "$work/layers" << END
core $core
kernels kernels/.*
files data/.*|plan/(base|options|model)/.*
many_ranks plan/value/.*|plan/layout/layout|run/run|run/model/.*
planner plan/(cost|step)/.*
layouts plan/layout/.*
published plan/published/.*
slow_ranks (plan|run)/slow/.*
run run/(step|files|setup|strategies|rl)/.*
comfort .*
END

# A line a name: the object, T where it defines the name or U where it needs it, the name.
nm -A -g $(make -s object-names) |
    sed -n 's/^build\/[a-z]*\/\([^:]*\)\.o:.* \([A-Zu]\) \([^ ]*\)$/\1 \2 \3/p' > "$work/names"

awk '
    NR == FNR { layer[++n] = $1; files[n] = "^(" $2 ")$"; next }
    { object[++m] = $1; kind[m] = $2; name[m] = $3 }
    BEGIN { seam = "^(mechanisms|run_(next_batch|agree|diverged|tell|tell_loss|sample|keep))$" }
    function of(file, i) { for (i = 1; file !~ files[i]; i++); return i }
    END {
        for (i = 1; i <= m; i++) if (kind[i] != "U") where[name[i]] = object[i]
        for (i = 1; i <= m; i++) {
            if (!(object[i] in at)) objects[at[object[i]] = of(object[i])]++
            if (kind[i] != "U" || !(name[i] in where) || name[i] ~ seam) continue
            own = at[object[i]]; other = of(where[name[i]])
            if (other <= own) continue
            up[own] = up[own] "    " object[i] " needs " name[i] " of " layer[other] " in " where[name[i]] "\n"
        }
        for (i = 1; i <= n; i++) {
            good = !(i in up) && objects[i] > 0
            printf "  %s %s_needs_no_layer_above_it\n%s", good ? "ok     " : "FAILED ", layer[i], up[i]
            passed += good
        }
        printf "%d passed, %d failed\n", passed, n - passed
        exit passed != n
    }' "$work/layers" "$work/names"
