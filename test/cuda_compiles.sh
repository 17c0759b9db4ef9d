#!/bin/sh
# cuda_compiles.sh - every CUDA source compiles for the emulator with clang too, and with nvcc for each architecture
# that the program supports; no kernel of the fast attention spills registers on those that are found in data centres.
cd "$(dirname "$0")/.." || exit 1
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)}
passed=0 failed=0 skipped=0
if command -v clang++ > /dev/null 2>&1; then
    errors=$(for file in kernels/cuda/*.cu; do
        case $file in
            *cudnn_plan.cu | */attention_cudnn.cu | */library.cu) continue ;; # not part of the emulator
        esac
        clang++ -std=c++17 -Wall -Wextra -Itest/emu -I. -x c++ -fsyntax-only "$file" 2>&1
    done)
    if [ -z "$errors" ]; then
        passed=$((passed + 1))
        echo "  ok      the emulator's sources compile with clang"
    else
        failed=$((failed + 1))
        echo "  FAILED  with clang:" && echo "$errors" | head -n 5
    fi
else
    skipped=$((skipped + 1))
    echo "  skipped the emulator's sources with clang: no clang++ here"
fi
if [ -z "$nvcc" ]; then
    echo "  skipped cuda_sources_compile_for_every_architecture: no nvcc here"
    echo "$passed passed, $failed failed, $((skipped + 1)) skipped"
    exit $failed
fi
work=build/cuda_compiles
mkdir -p $work
archs="" includes=$(dirname "$(dirname "$nvcc")")/include
for a in 80 89 90 100 120; do archs="$archs -gencode arch=compute_$a,code=sm_$a"; done
for file in kernels/cuda/*.cu; do
    name=$(basename "$file" .cu)
    case $name in
        attention_cudnn | cudnn_plan) header=cudnn.h ;;
        comm_nccl*) header=nccl.h ;;
        *) header=stdio.h ;;
    esac
    if ! echo "#include <$header>" | ${CXX:-c++} -I"$includes" -x c++ -fsyntax-only - 2> /dev/null; then
        echo "  (without $name.cu: no $header here)"
        continue
    fi
    if "$nvcc" -std=c++17 -O3 $archs --threads 0 -I. -Xptxas -v -Xcompiler -Wall -c "$file" -o $work/$name.o \
        > $work/$name.log 2>&1 && ! grep -q 'warning' $work/$name.log; then
        passed=$((passed + 1))
        echo "  ok      $name.cu compiles for sm_80 89 90 100 120"
    else
        failed=$((failed + 1))
        echo "  FAILED  $name.cu"
        grep -E 'error|warning' $work/$name.log | head -n 5
    fi
done
spills=$(cat $work/attention.log $work/attention_backward.log | grep -A1 -E "for 'sm_(80|90)'" |
    grep -E '[1-9][0-9]* bytes spill' | head -n 3)
if [ -z "$spills" ]; then
    passed=$((passed + 1))
    echo "  ok      attention keeps its registers on sm_80 and sm_90"
else
    failed=$((failed + 1))
    echo "  FAILED  attention spills registers:" && echo "$spills"
fi
echo "$passed passed, $failed failed, $skipped skipped" | sed 's/, 0 skipped//'
[ $failed = 0 ]
