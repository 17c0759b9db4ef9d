#!/bin/sh
# cuda_compiles.sh ARCH... - every CUDA source compiles for the emulator with clang too, and with nvcc for each of these
# architectures (80 89 90 100 120), as many at a time as there are cores. On those that are found in data centres (80,
# 90) no kernel of the fast attention spills registers, no kernel uses local memory, and where loads and stores of 16
# bytes are promised the machine code has them, as cuobjdump shows. On 80, 90 and 100 every address of global memory
# comes from a pointer, none from shared memory; a kernel that loads from shared memory also puts something there; and
# registers, spills and static shared memory of every kernel are those of dev/results/cuda_kernels.txt, which
# KERNELS=write test/cuda_compiles.sh 80 90 100 writes anew.
cd "$(dirname "$0")/.." || exit 1
table=dev/results/cuda_kernels.txt
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)}
cores=$(nproc 2> /dev/null || echo 2)
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)) && echo "  ok      $1"; }
bad() { failed=$((failed + 1)) && echo "  FAILED  $1" && echo "$2" | head -n 5; }
skip() { skipped=$((skipped + 1)) && echo "  skipped $1"; }
finish() {
    echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
    exit $failed
}

if command -v clang++ > /dev/null 2>&1; then
    # One that needs cuDNN's headers, and one that opens libraries, are not part of the emulator.
    errors=$(ls kernels/cuda/*.cu | grep -vE '/(cudnn_plan|library)\.cu' | xargs -n 1 -P "$cores" \
        clang++ -std=c++17 -Wall -Wextra -Itest/emu -I. -DHAVE_NCCL -x c++ -fsyntax-only 2>&1)
    [ -z "$errors" ] && ok "the emulator's sources compile with clang" || bad "with clang:" "$errors"
else
    skip "the emulator's sources with clang: no clang++ here"
fi
if [ -z "$nvcc" ]; then
    skip "cuda_sources_compile_for $*: no nvcc here"
    finish
fi

work=build/cuda_compiles
rm -rf $work
mkdir -p $work
flags="-std=c++17 -O3 --threads 0 -I. -DHAVE_CUDNN -DHAVE_NCCL -Xptxas -v -Xcompiler -Wall"
codes= # and Hopper's own instructions, which are compiled for it alone
for a in "$@"; do codes="$codes -gencode arch=compute_$a,code=sm_$a"; done
includes=$(dirname "$(dirname "$nvcc")")/include
frontend= # cudnn-frontend's headers, which are a Python package
for header in build/tools/include/cudnn_frontend.h $(python3 -c '
import site
for path in site.getsitepackages() + [site.getusersitepackages()]: print(path + "/include/cudnn_frontend.h")'); do
    [ -e "$header" ] && frontend="-isystem $(dirname "$header")"
done
for file in $(ls -S kernels/cuda/*.cu); do # the long ones first
    case $file in
        */cudnn_plan.cu) headers="cudnn.h cudnn_frontend_version.h" ;;
        */comm_nccl.cu) headers=nccl.h ;;
        *) headers=stdio.h ;;
    esac
    if printf '#include <%s>\n' $headers | ${CXX:-c++} -I"$includes" $frontend -x c++ -fsyntax-only - 2> /dev/null; then
        basename "$file" .cu
    else
        echo "  (without $file: no $headers here)" >&2
    fi
done > $work/names
xargs -P "$cores" -I NAME < $work/names \
    sh -c "mkdir $work/NAME && codes='$codes' && case NAME in
            cudnn_plan) host='-x c++' ;; # it has no kernels
            *_sm90*) codes='-gencode arch=compute_90a,code=sm_90a' ;;
        esac
        $nvcc $flags \$codes $frontend \$host --keep --keep-dir $work/NAME -c kernels/cuda/NAME.cu -o $work/NAME.o \
        > $work/NAME.log 2>&1; find $work/NAME -type f ! -name '*.ptx' -delete"
while read -r name; do
    if [ -e "$work/$name.o" ] && ! grep -qE 'warning|Performance Loss' "$work/$name.log"; then
        ok "$name.cu compiles for sm_$(echo "$@" | tr ' ' ',')"
    else
        bad "$name.cu" "$(grep -E 'error|warning|Performance Loss' "$work/$name.log")"
    fi
done < $work/names
sed -i '/^cudnn_plan$/d' $work/names
# ptxas names a kernel and its architecture two lines above what the kernel uses.
spills=$(cat $work/attention.log $work/attention_*backward.log $work/attention_sm90.log |
    grep -A2 -E "for 'sm_(80|90a?)'" |
    grep -E '[1-9][0-9]* bytes spill' | head -n 3)
[ -z "$spills" ] && ok "attention keeps its registers on sm_80 and sm_90" || bad "attention spills registers:" "$spills"
local=$(cat $work/*.log | grep -A2 -E "for 'sm_(80|90a?)'" | grep -B2 -E '[1-9][0-9]* bytes stack frame' |
    grep "for 'sm_")
[ -z "$local" ] && ok "no kernel uses local memory on sm_80 and sm_90" || bad "local memory:" "$local"
read_all=$(cat $work/*.log | grep -cE '[0-9]+ bytes stack frame')
[ "$read_all" -gt 0 ] && ok "ptxas has told of $read_all kernels" || bad "ptxas tells no more what kernels use" ""

# In: PTX. Out: what reads or writes global memory where no pointer leads, or one to shared memory. A register comes
# from what it is computed of: a pointer is a parameter of 64 bits, a value of 64 bits from memory, or a variable's
# name. Where the compiler was told that shared memory is global it takes its base for 0, so that no pointer is left.
wrong_spaces='
    function origin(text,    all) { # of the registers and names in it: 1 a pointer, 2 shared memory, 3 both
        all = 0
        while (match(text, /[%A-Za-z_$][A-Za-z0-9_$.]*/)) {
            word = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH)
            if (word in shared) all = either(all, 2)
            else if (word ~ /^%rd/) all = either(all, from[word])
            else if (word !~ /^%/) all = either(all, 1)
        }
        return all
    }
    function either(a, b) { return a == b || !b ? a + 0 : !a ? b + 0 : 3 }
    function finish(    changed, i, now) {
        for (changed = 1; changed;) {
            changed = 0
            for (i = 1; i <= n; i++) {
                now = either(from[to[i]], origin(of[i]))
                if (now != from[to[i]]) { from[to[i]] = now; changed = 1 }
            }
        }
        for (i = 1; i <= uses; i++) {
            now = origin(address[i])
            if (now != 1) print kernel ": " line[i] "   <- address of " (now ? "shared memory" : "no pointer")
        }
        n = uses = 0
        split("", from)
    }
    /\.shared .*\[/ && /\.align/ { name = $0; sub(/\[.*/, "", name); sub(/.*[ \t]/, "", name); shared[name] = 1 }
    /\.entry/ { finish(); kernel = $0; sub(/.*\.entry /, "", kernel); sub(/\(.*/, "", kernel); kernels++; next }
    !/%rd|\.global/ || /^[ \t]*\.(reg|param|loc|visible|global)/ { next }
    { sub(/^[ \t]*(@!?%p[0-9]+ )?[ \t]*/, ""); sub(/;.*/, "") }
    /^(ld|st|red|atom|cp|prefetch)[a-z0-9_.]*\.global/ {
        text = $0
        while (match(text, /\[[^]]*\]/)) { # cp.async: the first is of shared memory, in 32 bits
            inside = substr(text, RSTART + 1, RLENGTH - 2)
            text = substr(text, RSTART + RLENGTH)
            if (inside !~ /^%r[0-9]/) { address[++uses] = inside; line[uses] = $0 }
        }
    }
    /^(st|red|setp|cp|prefetch|bra|mov.b64[ \t]+\{)/ { next }
    {
        opcode = $1
        rest = substr($0, length(opcode) + 1)
        sub(/^[ \t]+/, "", rest)
        if (rest ~ /^\{/) { split(rest, half, "}"); target = half[1]; rest = substr(rest, length(target) + 2) }
        else { target = rest; sub(/,.*/, "", target); rest = substr(rest, length(target) + 1) }
        loads = opcode ~ /^(ld|atom)/
        while (match(target, /%rd[0-9]+/)) {
            to[++n] = substr(target, RSTART, RLENGTH)
            target = substr(target, RSTART + RLENGTH)
            of[n] = loads ? (opcode ~ /64$/ ? "memory" : "") : rest
            if (opcode ~ /^mov.b64/ && rest ~ /\{/) of[n] = "memory" # of two halves
        }
    }
    END { finish(); if (!kernels) print "no kernel in " FILENAME }'
wrong="" read_ptx=0
for ptx in $work/*/*.ptx; do
    grep -qE '^\.target sm_(80|90|100)' "$ptx" && grep -q '\.entry' "$ptx" || continue
    read_ptx=$((read_ptx + $(grep -c '\.entry' "$ptx")))
    wrong="$wrong$(awk "$wrong_spaces" "$ptx")"
done
if [ -n "$wrong" ]; then
    bad "global memory is read or written at addresses that are not of it:" "$wrong"
elif [ $read_ptx = 0 ]; then
    skip "address spaces: none of sm_80, 90, 100 was asked for"
else
    ok "all addresses of global memory come from pointers to it, in $read_ptx kernels of sm_80, 90, 100"
fi

# registers and spilled bytes on sm_80, 90, 100, static shared memory, file and kernel, by name
version=$("$nvcc" --version | grep -oE 'V[0-9.]+' | tail -n 1)
kernels_table() {
    echo "# What ptxas of nvcc $version says of every kernel: registers and bytes of spills on sm_80, 90 and 100, bytes"
    echo "# of static shared memory, file, kernel. Written by: KERNELS=write test/cuda_compiles.sh 80 90 100"
    while read -r name; do
        awk -v file="$name" '
            /Compiling entry function/ {
                split($0, part, "\047")
                kernel = part[2]
                arch = part[4]
                sub(/a$/, "", arch)
                kernels[kernel] = 1
            }
            /bytes stack frame/ { spills[kernel, arch] = $5 + $9 }
            /: Used [0-9]+ registers/ {
                registers[kernel, arch] = $5
                if (arch == "sm_80" && match($0, /[0-9]+ bytes smem/)) shared[kernel] = substr($0, RSTART) + 0
            }
            END {
                for (k in kernels)
                    printf "%3d %3d %3d  %2d %2d %2d  %5d  %s.cu %s\n", registers[k, "sm_80"], registers[k, "sm_90"],
                        registers[k, "sm_100"], spills[k, "sm_80"], spills[k, "sm_90"], spills[k, "sm_100"], shared[k],
                        file, k
            }' "$work/$name.log"
    done < $work/names | c++filt | sed -E 's/\.cu void /.cu /; s/>\(.*/>/; t; s/\(.*//' | LC_ALL=C sort -k 8
}
case "$*" in
    *80*90*100*)
        kernels_table > $work/kernels.txt
        if ! command -v c++filt > /dev/null; then
            skip "the table of kernels: no c++filt here"
        elif [ "$KERNELS" = write ]; then
            cp $work/kernels.txt $table && ok "$table is written: $(grep -vc '^#' $table) kernels"
        elif ! grep -q "nvcc $version says" $table; then
            skip "the table of kernels: $table is of another nvcc than $version"
        elif changes=$(diff $table $work/kernels.txt); then
            ok "registers, spills and static shared memory of $(grep -vc '^#' $table) kernels are those of $table"
        else
            bad "kernels are not as in $table (<); if that is meant: KERNELS=write $0 80 90 100" "$changes"
        fi ;;
    *) skip "the table of kernels: it is of sm_80, 90 and 100" ;;
esac

cuobjdump=$(command -v cuobjdump ||
    ls "$(dirname "$nvcc")/cuobjdump" build/tools/nvidia/*/bin/cuobjdump 2> /dev/null | head -n 1)
if [ -z "$cuobjdump" ]; then
    skip "machine code: no cuobjdump here (a part of CUDA, and a Python package: nvidia-cuda-cuobjdump)"
    finish
fi
PATH=$PATH:$(dirname "$cuobjdump") # it calls nvdisasm
for a in "$@"; do
    case $a in 80 | 90 | 100) ;; *) continue ;; esac
    xargs -P "$cores" -I NAME < $work/names sh -c "arch=sm_$a
        case NAME in *_sm90*) [ $a = 90 ] && arch=sm_90a || exit 0 ;; esac
        [ ! -e $work/NAME.o ] || $cuobjdump -arch \$arch -sass $work/NAME.o > $work/NAME.sm_$a.sass 2>&1"
    wrong=$(awk '
        function tell() { if (loads && !stores) print name ": " loads " loads from shared memory, no store there" }
        /Function :/ { tell(); name = $3; loads = stores = 0; n++ }
        / LDSM?[. ]/ { loads++ }
        / (STS|LDGSTS|ATOMS)[. ]/ { stores++ }
        END { tell(); if (!n) print "no kernel in the machine code" }' $work/*.sm_$a.sass)
    [ -z "$wrong" ] && ok "what kernels load from shared memory on sm_$a they have put there" ||
        bad "kernels that load from shared memory on sm_$a, where nothing is:" "$wrong"
done

for name in $(grep _sm90 $work/names); do
    [ -e $work/$name.sm_90.sass ] || continue
    if grep -q HGMMA $work/$name.sm_90.sass && grep -q UTMALDG $work/$name.sm_90.sass; then
        ok "$name.cu multiplies by wgmma (HGMMA), and loads by TMA (UTMALDG)"
    else
        bad "$name.cu: expected HGMMA and UTMALDG in the machine code" "$(grep -cE 'HMMA' $work/$name.sm_90.sass) HMMA"
    fi
done

# FILE KERNEL: kernels whose mangled names match load and store 16 bytes at a time, and nothing of 2
while read -r file kernel; do
    [ -e $work/$file.o ] || continue
    for a in "$@"; do
        case $a in 80 | 90) ;; *) continue ;; esac
        wrong=$(awk -v kernel="$kernel" '
            function tell() {
                n += name != ""
                if (name && (!loads || !stores || halves))
                    print name ": " loads " loads and " stores " stores of 16 bytes, " halves " of 2"
            }
            /Function :/ { tell(); name = $3 ~ kernel ? $3 : ""; loads = stores = halves = 0 }
            /LDG.E.128/ || /LDGSTS.E.BYPASS.(LTC128B.)?128/ { loads++ }
            /STG.E.128/ { stores++ }
            /(LDG|STG).E.U16/ { halves++ }
            END { tell(); if (!n) print "no such kernel in the machine code" }' $work/$file.sm_$a.sass)
        [ -z "$wrong" ] && ok "$file.cu: $kernel moves 16 bytes at a time on sm_$a" ||
            bad "$file.cu: $kernel on sm_$a: expected LDG.E.128 and STG.E.128, nothing of 2 bytes" "$wrong"
    done
done << 'PROMISES'
attention forward_kernelI.*Et
attention_backward (key|query)_kernelI.*Et
elementwise merge_kernelILi4E
elementwise move_(rows|heads)_kernelI5uint4
elementwise swiglu_kernelILb[01]ELi(8Et|4Ef)
norm (forward|backward)_kernelI(tLi8|fLi4)
rotary (turn|norm_backward)_kernelI(tLi8|fLi4)
PROMISES
finish
