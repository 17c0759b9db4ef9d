#!/bin/sh
# gpu_report.sh [bench_gpu's options] - runs the GPU bench, PyTorch included where PYTHON (default: python3) has it, and
# leaves one page in dev/results/<gpu>-<date>.md: every figure beside the limit that was measured in the same run. Takes
# under six minutes (--seconds 330). The single figures are in build/bench_gpu.jsonl.
#
#   scripts/gpu_report.sh                              after make and make build/release/dev/bench_gpu
#   scripts/gpu_report.sh --quick --device cpu         to try the script itself
cd "$(dirname "$0")/.." || exit 1
program=build/release/dev/bench_gpu out=build/bench_gpu.out errors=build/bench_gpu.err
for needed in "$program" build/release/train; do
    [ -x "$needed" ] || { echo "gpu_report: $needed is missing; see the head of this script" >&2; exit 1; }
done

first_line() { "$@" 2> /dev/null | head -n 1; }
gpu=$(first_line nvidia-smi --query-gpu=name --format=csv,noheader)
facts=$(first_line nvidia-smi --query-gpu=driver_version,memory.total,power.limit,clocks.max.sm --format=csv,noheader)
toolkit=$( (nvcc --version || /usr/local/cuda/bin/nvcc --version) 2> /dev/null | sed -n 's/.*release //p' | head -n 1)
commit=$(first_line git rev-parse --short HEAD)
[ -n "$(git status --porcelain --untracked-files=no 2> /dev/null)" ] && commit="$commit with changes"

{ "$program" "$@" 2> "$errors"; echo $? > build/bench_gpu.status; } | tee "$out"
status=$(cat build/bench_gpu.status)

[ -n "$gpu" ] || gpu=$(sed -n 1p "$out") # no nvidia-smi: what the program calls its device
slug=$(printf '%s' "${gpu:-unknown}" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9' '-' | sed 's/^-*//; s/-*$//')
report=dev/results/$slug-$(date +%F).md
mkdir -p dev/results
{
    echo "# ${gpu:-unknown}, $(date +%F)"
    echo
    echo "- driver, memory, power limit, highest clock: ${facts:-unknown}; CUDA toolkit ${toolkit:-unknown}"
    echo "- host: $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) threads"
    echo "- commit ${commit:-unknown}; \`scripts/gpu_report.sh${*:+ $*}\`, that is \`$program${*:+ $*}\`, which runs"
    echo "  \`build/release/train --dtype bf16 --layers ... --batch-tokens N --capacity TOKENS-OF-A-ROW\` and"
    echo "  \`dev/peer_torch.py bf16 --device cuda --layers ... --rows DOCUMENTS-AT-A-TIME\`"
    echo
    echo "Times are medians. Percentages are of the memory limit (GB/s) or of the matmul limit (TFLOP/s), both measured"
    echo "in the same run and printed first, and of the vendor's dense bf16 figure where it is known. Training counts 6"
    echo "FLOPs a weight and token, and 6 L C s^2 for attention in a document of s tokens. In parentheses behind"
    echo "PyTorch: what torch.compile was given."
    echo
    echo '```'
    cat "$out"
    echo '```'
    if [ "$status" != 0 ] || [ -s "$errors" ]; then
        echo
        echo "Ended with status $status; the last lines on stderr:"
        echo
        echo '```'
        tail -n 6 "$errors" | cut -c 1-200
        echo '```'
    fi
} > "$report"
echo "gpu_report: $report, $(wc -l < "$report") lines"
exit "$status"
