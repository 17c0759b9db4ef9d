#!/bin/sh
# gpu_oneshot.sh [--dry] [OUT] - ten minutes on a machine with a GPU, turned into the facts that we want of it: whether
# it builds, is right, and how fast it is beside limits measured in the same run. OUT (default: build/oneshot) gets one
# file a part as it comes, and at the end summary.md, at most 12,000 characters, which is also printed: the page for
# dev/results.
#
# Bounded to 570 seconds (SECONDS_IN_ALL): every part has a time of its own, nothing stops at a failure, what no longer
# fits is left out and named. PYTHON (default: python3) is asked for PyTorch. --dry goes through the parts without a
# GPU, on the emulated one or on the CPU with small sizes, or says why it cannot, so that the script is tested.
cd "$(dirname "$0")/.." || exit 1
dry=no inside=no
[ "$1" = --dry ] && dry=yes && shift
[ "$1" = --inside ] && inside=yes dry=$2 && shift 2 # one part, in a process of its own
out=${1:-build/oneshot} started=$(date +%s) python=${PYTHON:-python3}
[ $inside = yes ] || { rm -rf "$out" && mkdir -p "$out/runs"; } || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0

if [ $dry = yes ]; then
    train='build/release/train_emu --device emu' tests=build/release/test_on_emu
    model='--layers 1 --width 32 --heads 2 --context 64 --vocab 300 --batch-tokens 128'
    row=64 long_row=128 steps=3 patience=60 bench='--quick --device cpu'
else
    train='build/release/train --device cuda' tests=build/release/test_on_gpu
    model='--preset gpt2-124m --batch-tokens 131072'
    row=8192 long_row=32768 steps=12 patience=8 bench=
fi
options="--data plan run kernels data --dtype bf16 --eval-every 0 --sample-every 0 --save-every 0 --verbose"

# ---- parts that are more than one command

build() {
    if [ $dry = yes ]; then
        make -s build/release/train_emu build/release/train build/release/dev/bench_gpu $tests/test_ops
    else
        make -j build/release/train build/release/dev/bench_gpu && make -j tiers=gpu test-programs
    fi
}

versions() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.sm --format=csv
    nvcc --version | tail -n 2
    $python -c 'import torch; print("torch", torch.__version__)' 2>&1 | tail -n 1
    nproc
}

# claims PROGRAM [ENVIRONMENT]: each claim of a test program in a process of its own, six at a time. What went wrong is
# printed, and how many hold.
claims() {
    what=$out/runs/$1.$2
    sed -n 's/.*RUN(\([a-z0-9_]*\)).*/\1/p' test/"$1".c* | sort -u | if [ $dry = yes ]; then head -n 4; else cat; fi |
        xargs -P 6 -I CLAIM sh -c "$2 TEST_ONLY=CLAIM timeout 60 $tests/$1 > $what.CLAIM 2>&1 ||
            { echo \"FAILED $1 CLAIM: status \$?\"; head -n 6 $what.CLAIM; }"
    cat "$what."* > "$what"
    echo "$1 $2: $(grep -c '^  ok' "$what") claims hold, $(grep -c '^  skipped' "$what") skipped"
}

# The median of tokens a second over the later half of a run's steps.
speed() { # speed RUN
    sed -n 's/.*"tokens_per_second": \([0-9.e+]*\).*/\1/p' "$1/log.jsonl" 2> /dev/null | tail -n $((steps / 2 + 1)) |
        sort -g | awk '{ x[NR] = $1 } END { printf "%.0f", x[int((NR + 1) / 2)] }'
}

# variant NAME OPTIONS...: a training of a few steps.
variant() {
    name=$1 said=$out/runs/$1.out
    shift
    timeout 25 $train $options $model --steps $steps --out "$out/runs/$name" "$@" > "$said" 2>&1
    status=$?
    echo "$name: $(speed "$out/runs/$name") tokens/s, status $status; $(grep -m1 '^kernels' "$said" | cut -c 1-90)"
}

trainings() {
    variant own --attention own
    [ $dry = yes ] || variant cudnn --attention cudnn
    [ $dry = yes ] || variant any-order --attention cudnn --deterministic no
    variant bias --epilogues bias
    variant all-epilogues --epilogues all
    variant rows --capacity $row
    variant long-rows --capacity $long_row
}

# Time by kernel, in one step of rows of 8192 tokens.
profile() {
    ncu --clock-control none --metrics gpu__time_duration.sum --csv --launch-skip 1500 --launch-count 1500 $train \
        $options --preset gpt2-124m --batch-tokens 8192 --steps 8 --out "$out/runs/profile" > "$out/profile.csv"
    awk -F '","' '/gpu__time/ {
            gsub(/[",]/, "", $NF)
            sub(/[<(].*/, "", $5)
            t[$5] += $NF
            n[$5]++
            all += $NF
        }
        END { for (k in t) printf "%6.2f %%  %9.1f us  %5d x  %s\n", 100 * t[k] / all, t[k] / 1000, n[k], k }' \
        "$out/profile.csv" | sort -rn | head -n 30
}

# pair NAME OPTIONS...: two ranks on this one GPU, without MPI; on the emulated one with it. With STOP set rank 1 stands
# still after so many seconds, and rank 0 must end by itself.
pair() {
    name=$1 said=$out/runs/$1.out
    shift
    RANKS_MPI=$dry RANKS_SECONDS=30 test/ranks.sh 2 \
        sh -c '[ -n "$STOP" ] && [ "$RANK" = 1 ] || exec "$@"
               "$@" & sleep "$STOP"; kill -STOP $!; wait' pair $train $options $model --steps 4 --timeout $patience \
        --capacity $row --out "$out/runs/$name" "$@" > "$said" 2>&1
    echo "$name: status $?; $(grep -m1 'loss hash' "$said"; grep -m1 '^train:' "$said")"
}
ranks() {
    pair zero-3 --zero 3
    pair ring --cp 2 --cp-kind ring
    pair tensor --tp 2
}

sanitizer() {
    TEST_ONLY=aligned_rows compute-sanitizer --error-exitcode 9 $tests/test_attention
    TEST_ONLY=layernorm compute-sanitizer --tool racecheck --error-exitcode 9 $tests/test_ops_block
}

if [ $inside = yes ]; then
    eval "$2"
    exit
fi

# ---- the summary: as much of every part as fits

trap 'summary; exit 130' INT TERM
lines_of() { # lines_of PART N: its last N lines, narrow
    [ -s "$out/$1.out" ] || return
    printf '\n## %s\n\n```\n' "$1"
    grep -vE '^(CC|EMU|CXX|NVCC|AR|LINK) ' "$out/$1.out" | tail -n "$2" | cut -c 1-140
    printf '```\n'
}
summary() {
    {
        gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null || echo "no GPU, a dry run")
        printf '# %s, %s\n\n`scripts/gpu_oneshot.sh`, commit %s, %d s\n\n```\n' "$gpu" "$(date +%F)" \
            "$(git rev-parse --short HEAD 2> /dev/null)" $(($(date +%s) - started))
        cat "$out/parts"
        printf '```\n'
        for most in versions:8 trainings:9 train-and-peer:24 ops:8 attention:8 attention-cudnn:10 golden:8 profile:24 \
            ranks:8 stopped-rank:4 bench:60 smoke-own:2 smoke-cudnn:4 sanitizer:4 build:4; do
            lines_of "${most%:*}" "${most#*:}"
        done
    } | head -c 12000 > "$out/summary.md"
    cat "$out/summary.md"
}

# ---- the parts, in the order of what we want to know first

tell() { printf '%-16s %4s s  %s\n' "$1" "$2" "$3" | tee -a "$out/parts"; }
# part NAME SECONDS COMMAND: runs it, its output in OUT/NAME.out; one line about it in OUT/parts.
part() {
    limit=$2 left=$((started + ${SECONDS_IN_ALL:-570} - $(date +%s)))
    [ "$left" -ge "$limit" ] || limit=$left
    if [ "$limit" -lt 3 ]; then
        tell "$1" - "left out: no time left"
        return
    fi
    begun=$(date +%s)
    timeout -k 2 "$limit" sh "$0" --inside $dry "$out" "$3" > "$out/$1.out" 2>&1 < /dev/null
    status=$?
    case $status in
        0) status=ok ;;
        124) status="ended by its limit of $limit s" ;;
        *) status="status $status" ;;
    esac
    tell "$1" $(($(date +%s) - begun)) "$status"
}
# gpu NAME SECONDS COMMAND WHY: a part that a dry run leaves out, and why.
gpu() { if [ $dry = yes ]; then tell "$1" - "left out: $4"; else part "$1" "$2" "$3"; fi; }

in_suite="the suite has it on the emulated GPU"
part versions 5 versions
part build 90 build
part smoke-own 8 "$train $options $model --steps 3 --attention own --out $out/runs/smoke"
gpu smoke-cudnn 12 "$train $options $model --steps 3 --attention cudnn --out $out/runs/smoke-cudnn" "it has no cuDNN"
part ops 25 "claims test_ops; [ $dry = yes ] || { claims test_ops_block; claims test_ops_parts; claims test_matmul; }"
gpu attention 25 "claims test_attention; claims test_attention_parts" "$in_suite"
cudnn=TEST_ATTENTION=cudnn
gpu attention-cudnn 20 "claims test_attention $cudnn; claims test_attention_parts $cudnn" "it has no cuDNN"
gpu golden 40 "build/release/test/test_golden '$train'; build/release/test/test_device '$train'" "$in_suite"
part trainings 60 trainings
if command -v ncu > /dev/null 2>&1; then
    gpu profile 50 profile "no GPU"
else
    tell profile - "left out: no ncu here"
fi
part bench 110 "build/release/dev/bench_gpu $bench --only ops,matmul,attention --seconds 100"
part train-and-peer 60 "PYTHON=$python build/release/dev/bench_gpu $bench --only train --seconds 55"
if [ $dry = yes ] && ! command -v mpirun > /dev/null 2>&1; then
    tell ranks - "left out: no MPI, which NCCL's stand-in needs"
else
    part ranks 40 ranks
fi
gpu stopped-rank 25 "export STOP=8; pair stopped --steps 100000 --timeout 5" "$in_suite"
if command -v compute-sanitizer > /dev/null 2>&1; then
    gpu sanitizer 25 sanitizer "no GPU"
else
    tell sanitizer - "left out: no compute-sanitizer here"
fi
summary
! grep -qvE ' (ok|left out.*)$' "$out/parts"
