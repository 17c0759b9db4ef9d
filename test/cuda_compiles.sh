#!/bin/sh
# cuda_compiles.sh ARCH... - every CUDA source compiles for the emulator with clang too, and with nvcc for each of these
# architectures (80 89 90 100 120), as many at a time as there are cores. On those that are found in data centres (80,
# 90) no kernel of the fast attention spills registers, no kernel uses local memory, and where loads and stores of 16
# bytes are promised the machine code has them, as cuobjdump shows.
cd "$(dirname "$0")/.." || exit 1
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
    # Three that need cuDNN's header, and one that opens libraries, are not part of the emulator.
    errors=$(ls kernels/cuda/*.cu | grep -vE '/(cudnn_plan|cudnn_buckets|attention_cudnn|library)\.cu' |
        xargs -n 1 -P "$cores" clang++ -std=c++17 -Wall -Wextra -Itest/emu -I. -x c++ -fsyntax-only 2>&1)
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
flags="-std=c++17 -O3 --threads 0 -I. -Xptxas -v -Xcompiler -Wall"
for a in "$@"; do flags="$flags -gencode arch=compute_$a,code=sm_$a"; done
includes=$(dirname "$(dirname "$nvcc")")/include
for file in $(ls -S kernels/cuda/*.cu); do # the long ones first
    case $file in
        */attention_cudnn.cu | */cudnn_buckets.cu | */cudnn_plan.cu) header=cudnn.h ;;
        */comm_nccl*) header=nccl.h ;;
        *) header=stdio.h ;;
    esac
    if echo "#include <$header>" | ${CXX:-c++} -I"$includes" -x c++ -fsyntax-only - 2> /dev/null; then
        basename "$file" .cu
    else
        echo "  (without $file: no $header here)" >&2
    fi
done > $work/names
xargs -P "$cores" -I NAME < $work/names \
    sh -c "$nvcc $flags -c kernels/cuda/NAME.cu -o $work/NAME.o > $work/NAME.log 2>&1"
while read -r name; do
    if [ -e "$work/$name.o" ] && ! grep -q 'warning' "$work/$name.log"; then
        ok "$name.cu compiles for sm_$(echo "$@" | tr ' ' ',')"
    else
        bad "$name.cu" "$(grep -E 'error|warning' "$work/$name.log")"
    fi
done < $work/names
# ptxas names a kernel and its architecture two lines above what the kernel uses.
spills=$(cat $work/attention.log $work/attention_backward.log | grep -A2 -E "for 'sm_(80|90)'" |
    grep -E '[1-9][0-9]* bytes spill' | head -n 3)
[ -z "$spills" ] && ok "attention keeps its registers on sm_80 and sm_90" || bad "attention spills registers:" "$spills"
local=$(cat $work/*.log | grep -A2 -E "for 'sm_(80|90)'" | grep -B2 -E '[1-9][0-9]* bytes stack frame' |
    grep "for 'sm_")
[ -z "$local" ] && ok "no kernel uses local memory on sm_80 and sm_90" || bad "local memory:" "$local"
read_all=$(cat $work/*.log | grep -cE '[0-9]+ bytes stack frame')
[ "$read_all" -gt 0 ] && ok "ptxas has told of $read_all kernels" || bad "ptxas tells no more what kernels use" ""

cuobjdump=$(command -v cuobjdump ||
    ls "$(dirname "$nvcc")/cuobjdump" build/tools/nvidia/*/bin/cuobjdump 2> /dev/null | head -n 1)
if [ -z "$cuobjdump" ]; then
    skip "machine code: no cuobjdump here (a part of CUDA, and a Python package: nvidia-cuda-cuobjdump)"
    finish
fi
PATH=$PATH:$(dirname "$cuobjdump") # it calls nvdisasm
# FILE KERNEL: kernels whose mangled names match load and store 16 bytes at a time, and nothing of 2
while read -r file kernel; do
    [ -e $work/$file.o ] || continue
    for a in "$@"; do
        case $a in 80 | 90) ;; *) continue ;; esac
        wrong=$("$cuobjdump" -arch sm_$a -sass $work/$file.o 2>&1 | awk -v kernel="$kernel" '
            function tell() {
                n += name != ""
                if (name && (!loads || !stores || halves))
                    print name ": " loads " loads and " stores " stores of 16 bytes, " halves " of 2"
            }
            /Function :/ { tell(); name = $3 ~ kernel ? $3 : ""; loads = stores = halves = 0 }
            /LDG.E.128/ || /LDGSTS.E.BYPASS.(LTC128B.)?128/ { loads++ }
            /STG.E.128/ { stores++ }
            /(LDG|STG).E.U16/ { halves++ }
            END { tell(); if (!n) print "no such kernel in the machine code" }')
        [ -z "$wrong" ] && ok "$file.cu: $kernel moves 16 bytes at a time on sm_$a" ||
            bad "$file.cu: $kernel on sm_$a: expected LDG.E.128 and STG.E.128, nothing of 2 bytes" "$wrong"
    done
done << 'PROMISES'
attention forward_kernelI.*Et
attention_backward (key|query)_kernelI.*Et
attention_backward convert_kernel
cudnn_moves interleave_kernel
elementwise merge_kernelILi4E
elementwise move_(rows|heads)_kernelI5uint4
elementwise swiglu_kernelILb[01]ELi(8Et|4Ef)
norm (forward|backward)_kernelI(tLi8|fLi4)
rotary (turn|norm_backward)_kernelI(tLi8|fLi4)
PROMISES
finish
