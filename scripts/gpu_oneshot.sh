#!/bin/sh
# gpu_oneshot.sh [--dry] [first|second|PART...] - twice six minutes on a machine with a GPU, turned into the facts that
# we want of it: whether it builds, is right, and how fast it is beside others and beside limits measured in the same
# run. first: build, Hopper's attention, claims of the ops, smokes, the sweep of attention, rollouts, Qwen3-0.6B beside
# PyTorch. second: build (nothing to do where the first was), the other models beside PyTorch, profiles, FP8, a long
# document, two ranks, what else fits. Without a name: both. OUT (default: build/oneshot) gets CALL.txt, all output as
# it comes, CALL.jsonl, and CALL.md, at most 12,000 characters, which ends with a table of what was measured, predicted
# and at most possible: the page for dev/results. It is written anew behind every part, and printed at the end.
#
# Each call is bounded to 350 seconds (SECONDS_IN_ALL): every part has a time of its own, what no longer fits is left
# out and named. A part that fails stops nothing, but the build. PYTHON (default: python3) is asked for PyTorch and
# transformers, TESTS is where test programs lie. --dry goes through the parts without a GPU, on the emulated one or on
# the CPU with small sizes, or says why it cannot, so that the script is tested.
cd "$(dirname "$0")/.." || exit 1
dry=no inside=no
[ "$1" = --dry ] && dry=yes && shift
if [ "$1" = --inside ]; then # one part, in a process of its own
    inside=yes dry=$2 call=$3 && shift 3
else
    if [ $# = 0 ]; then
        [ $dry = yes ] && set -- --dry
        sh "$0" "$@" first
        status=$?
        sh "$0" "$@" second && [ $status = 0 ]
        exit
    fi
    case $1 in first | second) call=$1 ;; *) call=parts ;; esac
fi
work=build/oneshot/$call results=${OUT:-build/oneshot} started=$(date +%s) python=${PYTHON:-python3}
[ $inside = yes ] || rm -rf "$work" || exit 1
mkdir -p "$work/runs" "$results" || exit 1
[ $inside = yes ] || : > "$results/$call.txt" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if [ $dry = yes ]; then
    train='build/release/train_emu --device emu' tests=${TESTS:-build/release/test_on_emu}
    model='--layers 1 --width 32 --heads 2 --context 64 --vocab 300 --batch-tokens 128' large=$model
    row=64 rows='64 128' steps=3 patience=60 bench='--quick --device cpu'
    # Documents have ids of large vocabularies, which the emulated GPU takes long for.
    beside='build/release/train --device cpu' small='--layers 1 --width 32 --heads 2'
    documents='--tokens 2048 --median 20 --most 64' context=64 batch=256 capacity=128 long=256
    peer="--device cpu $small --vocab 300" compile=off prompts=2 prompt=20 answers=3 new=4 room=64
    sweep_sizes='SWEEP_SIZES=96 SWEEP_SECONDS=20'
else
    train='build/release/train --device cuda' tests=${TESTS:-build/release/test_on_gpu}
    model='--preset gpt2-124m --batch-tokens 131072' large='--preset gpt2-1558m --batch-tokens 32768'
    row=8192 rows='4096 8192 16384' steps=12 patience=8 bench=
    beside=$train small= documents= context=8192 batch=131072 capacity=16384 long=131072
    peer='--device cuda' compile=block prompts=8 prompt=212 answers=16 new=128 room=512
    sweep_sizes='SWEEP_SECONDS=92'
fi
options="--data plan run kernels data --dtype bf16 --eval-every 0 --sample-every 0 --save-every 0 --verbose"

# fact NAME MEASURED PREDICTED LIMIT: a line of the table at the end.
fact() { printf 'fact: | %s | %s | %s | %s |\n' "$1" "${2:--}" "${3:--}" "${4:--}"; }

# ---- parts that are more than one command. Each ends with a status that is not 0 when anything in it failed

# A test program that does not build fails its own part, not the call.
build() {
    sweep=
    if [ $dry = yes ]; then
        [ ! -f test/test_sweep.c ] || sweep=build/release/test_on_emu/test_sweep
        make -s build/release/train_emu build/release/train build/release/dev/bench_gpu \
            build/release/test_on_emu/test_ops $sweep
    else
        [ ! -f test/test_sweep.c ] || sweep=build/release/test_on_gpu/test_sweep
        make -j build/release/train build/release/dev/bench_gpu || return
        make -k -j tiers=gpu test-programs $sweep || echo "FAILED: not all test programs build"
    fi
}

versions() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.sm --format=csv
    nvcc --version | tail -n 2
    $python -c 'import torch; print("torch", torch.__version__)' 2>&1 | tail -n 1
    nproc
    true
}

# claims PROGRAM [ENVIRONMENT]: all claims of a test program in one process. Where that dies, the claim that it died in
# has failed, and those behind it run in a process each. Prints what went wrong, and how many hold.
claims() {
    said=$work/runs/$1.$2 bad=0
    env $2 timeout --foreground 120 "$tests/$1" > "$said" 2>&1
    status=$?
    if ! grep -qE '^[0-9]+ passed, [0-9]+ failed' "$said"; then
        sed -nE 's/^(CLAIM|.*\) RUN)\(([a-z0-9_]*)\).*/\2/p' test/"$1".c* > "$said.all"
        last=$(sed -n 's/^  \(ok     \|FAILED \|skipped\) \([a-z0-9_]*\).*/\2/p' "$said" | tail -n 1)
        awk -v last="$last" 'behind; $0 == last { behind = 1 }' "$said.all" > "$said.left"
        [ -n "$last" ] || cp "$said.all" "$said.left"
        echo "FAILED $1 $2 $(head -n 1 "$said.left"): status $status"
        tail -n 4 "$said"
        bad=1
        sed 1d "$said.left" | xargs -P 4 -I CLAIM sh -c "
            env $2 TEST_ONLY=CLAIM timeout --foreground 30 $tests/$1 > $said.CLAIM 2>&1 ||
                echo \"FAILED $1 CLAIM: status \$?\""
        cat "$said".[a-z]*_* >> "$said" 2> /dev/null
    fi
    grep -B 6 '^  FAILED' "$said" | head -n 20
    echo "$1 $2: $(grep -c '^  ok' "$said") claims hold, $(grep -c '^  skipped' "$said") skipped"
    [ $bad = 0 ] && [ $status = 0 ]
}

# claims_of ENVIRONMENT PROGRAM...: of all of them, side by side, since most of the time is the reference's on the CPU.
# Told in this order.
claims_of() {
    with=$1 failed=0
    shift
    for p in "$@"; do (claims "$p" "$with" > "$work/$p.told"; echo $? > "$work/$p.status") & done
    wait
    for p in "$@"; do
        cat "$work/$p.told"
        [ "$(cat "$work/$p.status")" = 0 ] || failed=1
    done
    return $failed
}
# Norms and attention first: what they get wrong, all else does. Of every claim fp32 comes before bf16.
ops() {
    if [ $dry = yes ]; then claims_of TEST_ONLY=embedding test_ops; return; fi
    claims_of '' test_ops_block test_attention test_ops test_ops_parts test_fp8_ops test_sample test_matmul
}

# The median of a number of the log over the later half of a run's steps, or its last COUNT.
later() { # later RUN MEMBER [COUNT [FORMAT]]
    sed -n "s/.*\"$2\": \([0-9.e+-]*\).*/\1/p" "$1/log.jsonl" 2> /dev/null | tail -n "${3:-$((steps / 2 + 1))}" |
        sort -g | awk -v format="${4:-%.0f}" '{ x[NR] = $1 } END { printf format, x[int((NR + 1) / 2)] }'
}
speed() { later "$work/runs/$1" tokens_per_second; }
ratio() { echo "$1 $2" | awk '$2 > 0 { printf "%.3f", $1 / $2 }'; } # ratio A B
hash_of() { sed -n 's/.*loss hash \([0-9a-f]*\).*/\1/p' "$work/runs/$1.out"; }
table_mib() { sed -n 's/^  total *\([0-9.]*\) MiB$/\1/p' "$work/runs/$1.out"; }

# The most that the driver says is taken, MiB, in OUT.used, while the process is there.
watch_memory() { # watch_memory PID FILE
    most=0 i=0
    while [ $i -lt 400 ] && kill -0 "$1" 2> /dev/null; do
        used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2> /dev/null | head -n 1)
        [ "${used:-0}" -le $most ] || most=$used
        echo $most > "$2"
        i=$((i + 1))
        sleep 0.3
    done
}

# variant NAME OPTIONS...: a training of a few steps. MOST: its seconds.
variant() {
    name=$1 said=$work/runs/$1.out
    shift
    timeout --foreground "${MOST:-25}" $train $options $model --steps $steps --out "$work/runs/$name" "$@" \
        > "$said" 2>&1 &
    pid=$!
    watch_memory $pid "$work/runs/$name.used"
    wait $pid
    status=$?
    echo "$name: $(speed "$name") tokens/s, status $status; table $(table_mib "$name") MiB, driver" \
        "$(cat "$work/runs/$name.used") MiB; $(grep -m1 '^kernels' "$said" | cut -c 1-60)"
    [ $status = 0 ] || tail -n 2 "$said"
    return $status
}

trainings() {
    failed=0
    variant own --device attention=own || failed=1
    variant again --device attention=own || failed=1
    same=same
    [ -n "$(hash_of own)" ] && [ "$(hash_of own)" = "$(hash_of again)" ] || same=unlike failed=1
    echo "loss hashes of two runs: $(hash_of own) and $(hash_of again), $same"
    variant rows --capacity $row || failed=1
    [ $dry = yes ] || variant cudnn --device attention=cudnn || failed=1
    fact "124M, own attention, tokens/s" "$(speed own)" "550000 (H100)"
    fact "two runs of 124M: loss hashes" $same same
    fact "124M: driver's MiB / table's" "$(cat "$work/runs/own.used") / $(table_mib own)" "at most 1"
    return $failed
}

# Rows of 1558M: those that fill the memory should be 3 to 6 % ahead.
long_rows() {
    failed=0 model=$large
    [ $dry = yes ] || steps=4
    for N in $rows; do
        MOST=36 variant "row-$N" --capacity "$N" || failed=1
        fact "1558M, rows of $N, tokens/s" "$(speed "row-$N")" "45000, 46700, 49300 (H100, rows of 4096, 8192, 16384)"
        fact "1558M, rows of $N: driver's MiB / table's" "$(cat "$work/runs/row-$N.used") / $(table_mib "row-$N")" \
            "at most 1"
    done
    return $failed
}

# FP8 beside bf16: 1558M should be 1.18 times as fast.
fp8() {
    failed=0 model=$large
    [ $dry = yes ] || steps=6
    for dtype in bf16 fp8; do MOST=40 variant "large-$dtype" --dtype $dtype || failed=1; done
    fact "1558M, FP8 over bf16" "$(ratio "$(speed large-fp8)" "$(speed large-bf16)")" 1.18
    fact "1558M, loss of the last step, FP8 and bf16" "$(later "$work/runs/large-fp8" loss 1 %.4f)" \
        "$(later "$work/runs/large-bf16" loss 1 %.4f)"
    return $failed
}

# Hopper's attention: all claims, then its passes beside those by mma.sync and cuDNN's.
hopper() {
    failed=0
    claims_of TEST_ATTENTION=wgmma test_attention || failed=1
    $bench_gpu --only attention --seconds 60 --record "$results/$call-attention.jsonl" || failed=1
    return $failed
}

# The last words of FILE, for a line about what failed.
last_words() { grep -v '^ *$' "$1" | tail -n 1 | cut -c 1-200; }

# python_peer NAME PROGRAM OPTIONS...: its line of results to NAME.out and the output, its first number into $theirs.
# Where Python lacks what it imports that is told, and no failure.
python_peer() {
    name=$1 said=$work/runs/$1.out
    shift
    timeout --foreground "${MOST:-60}" $python "$@" > "$said" 2> "$said.errors"
    status=$? theirs=$(tail -n 1 "$said" | cut -d ' ' -f 1)
    if [ $status = 0 ]; then echo "$name: $(tail -n 1 "$said")"; return; fi
    theirs=
    if grep -q '^ModuleNotFoundError' "$said.errors"; then
        echo "$name: left out: $(last_words "$said.errors")"
    else
        echo "$name: status $status: $(last_words "$said.errors")"
        return 1
    fi
}

# Ragged documents, the same for all: $work/documents.lengths, -16.bin, -32.bin.
make_documents() { $python dev/peer_documents.py "$work/documents" $documents; }

# A model on ragged documents with default options, and in PyTorch, whose rows have $capacity tokens. Of both the median
# of the steps after the first two.
peers() { # peers PRESET STEPS SECONDS-OF-PYTORCH PREDICTED PREDICTED-OF-PYTORCH
    preset=$1 failed=0 train=$beside
    [ $dry = yes ] || steps=$2
    make_documents || return
    options="--dtype bf16 --eval-every 0 --sample-every 0 --save-every 0 --verbose --context $context"
    shard=$work/documents-32.bin
    [ "$preset" != gpt2-124m ] || shard=$work/documents-16.bin
    model="--preset $preset $small --batch-tokens $batch --data $shard --val $shard"
    MOST=45 variant "$preset" || failed=1
    ours=$(later "$work/runs/$preset" tokens_per_second $((steps - 2)))
    share=$(later "$work/runs/$preset" mfu $((steps - 2)) %.4g)
    echo "$preset: $ours tokens/s, $share of peak"
    fact "$preset, ragged documents, tokens/s" "$ours" "$4 (H100, own attention)" "$(ratio "$ours" "$share")"
    MOST=$3 python_peer "PyTorch-$preset" dev/peer_torch.py bf16 $peer --preset "$preset" --context $context \
        --lengths "$work/documents.lengths" --capacity $capacity --batch-tokens $batch --compile $compile \
        --steps $((steps < 6 ? steps : 6)) || failed=1
    fact "$preset, ragged documents, by PyTorch, tokens/s" "$theirs" "$5 (H100)"
    fact "$preset, ragged documents: times PyTorch" "$(ratio "$ours" "${theirs:-0}")" "$(ratio "$4" "$5") (H100)"
    return $failed
}

# One document of 131,072 tokens, beside what the device's matmuls would take for its FLOPs.
long() {
    train=$beside
    [ $dry = yes ] || steps=3
    at=$work/long
    $python dev/peer_documents.py "$at" --tokens $long --median $long --sigma 0 --most $long || return
    options="--dtype bf16 --eval-every 0 --sample-every 0 --save-every 0 --verbose --context $long --capacity $long"
    model="--preset llama-3.2-1b $small --batch-tokens $long --data $at-32.bin --val $at-32.bin --recompute block"
    MOST=80 variant long
    status=$? share=$(later "$work/runs/long" mfu 2 %.4g)
    echo "long: $share of peak"
    fact "llama-3.2-1b, a document of $long, tokens/s" "$(speed long)" "7000 (H100)" "$(ratio "$(speed long)" "$share")"
    return $status
}

# A Qwen3-0.6B of random weights answers 8 prompts of 212 tokens 16 times, 128 tokens each; transformers' generate does
# the same. Weights and optimizer are 9 GB: where memory has a file system with room for them, they go there.
rollouts() {
    failed=0 weights=$work/runs/weights free=$(df -Pk /dev/shm 2> /dev/null | awk 'NR == 2 { print $4 }')
    [ "${free:-0}" -lt 16000000 ] || weights=$(mktemp -d /dev/shm/ragged-XXXXXX) || return
    trap 'rm -rf "$weights"' EXIT
    trap 'exit 1' INT TERM
    $python dev/rollouts.py "$work/asked" --prompts $prompts --prompt $((prompt - 1)) --answers 1 --lengths 1,1 \
        > "$work/runs/asked.out" || return
    options="--dtype bf16 --context $room"
    timeout --foreground 60 $train $options --preset qwen3-0.6b $small --data plan --batch-tokens $room --steps 1 \
        --save-every 1 --eval-every 0 --sample-every 0 --out "$weights/run" > "$work/runs/weights.out" 2>&1 || {
        echo "no weights: $(last_words "$work/runs/weights.out")"
        return 1
    }
    timeout --foreground 60 $train $options --init "$weights/run/step-000001" --data "$work/asked-trees.jsonl" \
        --rollouts "$work/runs/answers.jsonl" --answers $answers --tokens $new --temperature 1 \
        > "$work/runs/rollouts.out" 2>&1 || failed=1
    tail -n 2 "$work/runs/rollouts.out" | sed "s,$work/runs/,,g; s,$weights/,,g"
    ours=$(sed -n 's/.*[; ]\([0-9.]*\) tok\/s.*/\1/p' "$work/runs/rollouts.out" | tail -n 1)
    fact "qwen3-0.6b, rollouts, tokens/s" "$ours" "15000 wanted, 40000 hoped for (H100)"
    python_peer transformers dev/peer_generate.py $peer --prompts $prompts --prompt $prompt --answers $answers \
        --tokens $new || failed=1
    fact "the same by transformers' generate, tokens/s" "$theirs" "1289 (H100)"
    fact "rollouts: times transformers" "$(ratio "${ours:-0}" "${theirs:-0}")" "12 wanted"
    return $failed
}

# Claims of trees, of losses where labels do not count alike and of rollouts; then prompts of 512 tokens with 16 answers
# each as trees and as the same paths written out.
trees() {
    failed=0
    for claim in one_rank:test_trees losses_and:test_labels chunks:test_labels probabilities:test_rollouts; do
        TEST_ONLY=${claim%:*} timeout --foreground 60 build/release/test/"${claim#*:}" "$train" || failed=1
    done
    at=$work/runs/stars
    $python dev/rollouts.py "$at" --prompts 24 --answers 16 --lengths 64,512 --layers 12 --width 768 | tee "$at.txt" ||
        return 1
    options="--dtype bf16 --eval-every 0 --sample-every 0 --save-every 0 --context 2048 --capacity 32768 --verbose"
    for how in trees flat; do
        tokens=$(sed -nE "s/^tokens: trees ([0-9]*), written out ([0-9]*),.*/$how \1 \2/p" "$at.txt" |
            awk '{ print $1 == "trees" ? $2 : $3 }')
        model="--preset gpt2-124m --batch-tokens $tokens --data $at-$how.jsonl --val $at-$how.jsonl"
        variant "stars-$how" || failed=1
    done
    won=$(ratio "$(later "$work/runs/stars-flat" measured_ms)" "$(later "$work/runs/stars-trees" measured_ms)")
    fact "stars: time of the paths written out / of the trees" "$won" "0.9 of the limit" \
        "$(sed -n 's/^FLOPs: ratio \([0-9.]*\);.*/\1/p' "$at.txt")"
    return $failed
}

# Of a csv of ncu: time by kernel, with the shares of the memory's and the tensor cores' speed; and how much of a step
# is kernels: those from one clip_scale_kernel to the next, beside `ms` that a step takes.
by_kernel() { # by_kernel CSV MS
    awk -F '","' -v ms="$2" '
        /^"[0-9]+"/ {
            gsub(/[",]/, "", $NF)
            gsub(/"/, "", $1)
            sub(/^void /, "", $5)
            sub(/[<(].*/, "", $5)
            name[$1] = $5
            if ($(NF - 2) ~ /time_duration/) { time[$1] = $NF; order[++n_ids] = $1 }
            else if ($(NF - 2) ~ /dram/) dram[$1] = $NF
            else tensor[$1] = $NF
        }
        END {
            for (i = 1; i <= n_ids; i++) {
                id = order[i]
                k = name[id]
                t[k] += time[id]; d[k] += time[id] * dram[id]; m[k] += time[id] * tensor[id]; n[k]++
                all += time[id]
                if (k ~ /clip_scale/) seen++
                if (seen == 1) { step += time[id]; launches++ }
            }
            printf "  share        us  calls  memory  tensor  kernel\n"
            fflush()
            for (k in t)
                printf "%6.2f %%  %8.1f  %5d  %4.0f %%  %4.0f %%  %s\n", 100 * t[k] / all, t[k] / 1000, n[k],
                    d[k] / t[k], m[k] / t[k], k | "sort -rn | head -n 24"
            close("sort -rn | head -n 24")
            if (seen > 1 && ms > 0) {
                printf "a step: %d kernels of %.2f ms, %.2f ms by the clock\n", launches, step / 1e6, ms
                printf "fact: | idle share of a step of 8192 tokens, %% | %.1f | under 3 | 0 |\n", 100 - step / 1e4 / ms
            }
        }' "$1"
}

# One step of rows of 8192 tokens; without the profiler first, which also keeps the choices of matmuls.
profile() {
    one="--preset gpt2-124m --batch-tokens 8192 --steps 8"
    $train $options $one --out "$work/runs/unprofiled" > "$work/runs/unprofiled.out" 2>&1 || return 1
    tensor=$(ncu --query-metrics 2> /dev/null | grep -oE '^sm__(inst_executed_)?pipe_tensor[a-z_]*' | sort | head -n 40)
    tensor=$(echo "$tensor" | grep -m1 -x sm__pipe_tensor_cycles_active || echo "$tensor" | head -n 1)
    metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
    [ -z "$tensor" ] || metrics=$metrics,$tensor.avg.pct_of_peak_sustained_elapsed
    ncu --clock-control none --metrics $metrics --csv --print-units base --launch-skip 900 --launch-count 900 $train \
        $options $one --out "$work/runs/profile" > "$results/profile.csv"
    status=$?
    by_kernel "$results/profile.csv" "$(speed unprofiled | awk '$1 > 0 { printf "%.3f", 8192e3 / $1 }')"
    return $status
}

# A step of one row of 16384 tokens of ragged documents: time by kernel. As many launches as a step has are a step's
# kernels wherever they begin; the first ones belong to the start.
profile_of() { # profile_of PRESET LAUNCHES-OF-A-STEP
    make_documents || return
    shard=$work/documents-32.bin
    one="--dtype bf16 --eval-every 0 --sample-every 0 --save-every 0 --preset $1 --context 8192 --capacity 16384"
    one="$one --batch-tokens 16384 --data $shard --val $shard --steps 6"
    timeout --foreground 30 $train $one --out "$work/runs/unprofiled-$1" > "$work/runs/unprofiled-$1.out" 2>&1 || {
        last_words "$work/runs/unprofiled-$1.out"
        return 1
    }
    timeout --foreground 45 ncu --clock-control none --metrics gpu__time_duration.sum --csv --print-units base \
        --launch-skip $((2 * $2)) --launch-count "$2" --kill yes $train $one --out "$work/runs/profile-$1" \
        > "$results/profile-$1.csv" 2> "$work/runs/profile-$1.said"
    by_kernel "$results/profile-$1.csv" 0
    launches=$(grep -c '^"[0-9]' "$results/profile-$1.csv")
    echo "$launches launches; without the profiler $(later "$work/runs/unprofiled-$1" measured_ms 3 %.1f) ms"
    [ "$launches" -ge "$2" ]
}

# Two ranks share this GPU: NCCL 2.30 and newer is told so, for an older one each is a machine of its own
# (test/test_comm_nccl.cc). On the emulated GPU with MPI.
# pair NAME OPTIONS...: two ranks. With STOP set rank 1 stands still after so many seconds, and rank 0 must end by
# itself.
pair() {
    name=$1 said=$work/runs/$1.out
    shift
    export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_MAX_NCHANNELS=1 NCCL_RAS_ENABLE=0
    export NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_BUFFSIZE=1048576 NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket
    export NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
    RANKS_MPI=$dry RANKS_SECONDS=${MOST:-18} test/ranks.sh 2 \
        sh -c 'export NCCL_HOSTID=rank${RANK:-$OMPI_COMM_WORLD_RANK}
               [ -n "$STOP" ] && [ "$RANK" = 1 ] || exec "$@"
               "$@" & sleep "$STOP"; kill -STOP $!; wait' pair $train $options $model --layers 2 --steps 4 \
        --timeout $patience --capacity $row --out "$work/runs/$name" "$@" > "$said" 2>&1
    status=$?
    echo "$name: status $status; $(grep -m1 'loss hash' "$said"; grep '^train: [^w]' "$said")"
    return $status
}
ranks() {
    failed=0
    [ $dry = yes ] || model="--preset gpt2-124m --batch-tokens 32768"
    pair zero-3 --zero 3 || failed=1
    pair ring --cp 2,kind=ring || failed=1
    pair tensor --tp 2 || failed=1
    return $failed
}
# Rank 0 has to end with a line that names the other.
stopped_rank() {
    export STOP=8
    MOST=22 pair stopped --steps 100000 --timeout 5
    grep -qE '^train: rank 0 of 2' "$work/runs/stopped.out"
}

sanitizer() {
    TEST_ONLY=labels_weigh compute-sanitizer --error-exitcode 9 "$tests/test_ops" &&
        TEST_ONLY=aligned_rows compute-sanitizer --error-exitcode 9 "$tests/test_attention" &&
        TEST_ONLY=documents_do compute-sanitizer --tool racecheck --error-exitcode 9 "$tests/test_attention" &&
        TEST_ONLY=layernorm compute-sanitizer --tool racecheck --error-exitcode 9 "$tests/test_ops_block"
}

if [ $inside = yes ]; then
    eval "$1"
    exit
fi

# ---- the summary: as much of every part as fits, then the table

trap 'summary; exit 130' INT TERM
lines_of() { # lines_of PART N: its last N lines, narrow
    [ -s "$work/$1.out" ] || return
    printf '\n## %s\n\n```\n' "$1"
    grep -vE '^(CC|EMU|CXX|NVCC|AR|LINK|fact:) ' "$work/$1.out" | tail -n "$2" | cut -c 1-140
    printf '```\n'
}
# A figure that a bench recorded, with its limit: recorded NAME-IN-JSONL PREDICTED
recorded() {
    line=$(grep -h "^{\"name\":\"$1\"," "$results/$call"*.jsonl 2> /dev/null | tail -n 1)
    [ -n "$line" ] || return
    fact "$1, $(echo "$line" | sed 's/.*"unit":"\([^"]*\)".*/\1/')" \
        "$(echo "$line" | sed 's/.*"value":\([^,]*\),.*/\1/')" "$2" \
        "$(echo "$line" | sed -n 's/.*"limit":\([^,]*\),.*/\1/p')"
}
table() {
    printf '\n## measured, predicted, limit\n\n| what | measured | predicted | limit |\n|---|---|---|---|\n'
    {
        [ ! -s "$work/sweep.out" ] || fact "sweep of attention" \
            "$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$work/sweep.out" | tail -n 1)" "0 failed"
        recorded "limit matmul" "820 (H100)"
        recorded "limit memory" "85 % of the data sheet"
        recorded "gpt2-124m attention 8 x 1024 forward, own" "198 (H100)"
        recorded "gpt2-124m attention 8 x 1024 backward, own" "178 (H100)"
        recorded "gpt2-124m classifier of 1024 rows" "71 % of the limit (H100)"
        recorded "gpt2-124m full rows, 32 x 1024" "545000 (H100)"
        recorded "gpt2-124m times PyTorch" "1.12 (H100)"
        recorded "gpt2-1558m full rows, 8 x 1024" "47000 (H100)"
        cat "$work"/*.out
    } 2> /dev/null | sed -n 's/^fact: //p'
}
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null || echo "no GPU, a dry run")
write_summary() {
    table > "$work/table"
    {
        printf '# %s, %s, %s\n\n`scripts/gpu_oneshot.sh %s`, commit %s, %d s\n\n```\n' "$gpu" "$(date +%F)" "$call" \
            "$call" "$(git rev-parse --short HEAD 2> /dev/null)" $(($(date +%s) - started))
        cat "$work/parts"
        grep -h FAILED "$work/sweep.out" 2> /dev/null | head -n 16 | cut -c 1-160
        printf '```\n'
        for most in versions:8 rollouts:8 peers-qwen3-0.6b:8 peers-llama-3.2-1b:8 peers-gpt2-124m:8 long:4 ops:14 \
            smoke-own:2 smoke-cudnn:4 sweep:60 trainings:12 long-rows:6 peer:24 attention-cudnn:10 golden:8 trees:16 \
            profile:28 profile-qwen3-0.6b:20 profile-llama-3.2-1b:20 ranks:8 stopped-rank:4 bench:60 sanitizer:4 \
            build:4; do
            lines_of "${most%:*}" "${most#*:}"
        done
    } | head -c $((11990 - $(wc -c < "$work/table"))) > "$work/summary"
    # a block that was cut is closed, so that the table is one
    [ $(($(grep -c '^```' "$work/summary") % 2)) = 0 ] || printf '\n```\n' >> "$work/summary"
    cat "$work/summary" "$work/table" > "$results/$call.md"
}
summary() {
    write_summary
    cat "$results/$call.md"
}

# ---- the parts

tell() { printf '%-20s %4s s  %s\n' "$1" "$2" "$3" | tee -a "$work/parts"; }
# part NAME SECONDS COMMAND: runs it, its output behind that of the others; one line about it in `parts`.
part() {
    limit=$2 left=$((started + ${SECONDS_IN_ALL:-350} - $(date +%s)))
    [ "$left" -ge "$limit" ] || limit=$left
    if [ "$limit" -lt 3 ]; then
        tell "$1" - "left out: no time left"
        return
    fi
    begun=$(date +%s)
    printf '\n==== %s\n' "$1" >> "$results/$call.txt"
    before=$(wc -c < "$results/$call.txt")
    OUT=$results timeout -k 2 "$limit" sh "$0" --inside $dry $call "$3" >> "$results/$call.txt" 2>&1 < /dev/null
    status=$?
    tail -c +$((before + 1)) "$results/$call.txt" > "$work/$1.out"
    case $status in
        0) words=ok ;;
        124) words="ended by its limit of $limit s" ;;
        *) words="status $status" ;;
    esac
    tell "$1" $(($(date +%s) - begun)) "$words"
    write_summary
    return $status
}
# gpu NAME SECONDS COMMAND WHY: a part that a dry run leaves out, and why.
gpu() { if [ $dry = yes ]; then tell "$1" - "left out: $4"; else part "$1" "$2" "$3"; fi; }
# tool NAME SECONDS COMMAND PROGRAM: a part that needs it.
tool() {
    if command -v "$4" > /dev/null 2>&1; then gpu "$1" "$2" "$3" "no GPU"; else tell "$1" - "left out: no $4 here"; fi
}

in_suite="the suite has it on the emulated GPU"
smoke="$train $options $model --steps 3"
bench_gpu="PYTHON=$python build/release/dev/bench_gpu $bench"
run_part() {
    case $1 in
        versions) part versions 15 versions ;;
        build) part build 100 build ;;
        sweep)
            if [ -x "$tests/test_sweep" ]; then
                part sweep 105 "$sweep_sizes $tests/test_sweep"
            else
                tell sweep - "left out: no $tests/test_sweep here"
            fi ;;
        smoke-own) part smoke-own 20 "$smoke --device attention=own --out $work/runs/smoke" ;;
        smoke-cudnn) gpu smoke-cudnn 25 "$smoke --device attention=cudnn --out $work/runs/smoke-cudnn" \
            "it has no cuDNN" ;;
        hopper) gpu hopper 100 hopper "the suite has its claims on the emulated GPU" ;;
        fp8) part fp8 80 fp8 ;;
        ops) part ops 60 ops ;;
        rollouts) part rollouts 90 rollouts ;;
        peers) for model in qwen3-0.6b llama-3.2-1b gpt2-124m; do run_part peers-$model; done ;;
        peers-qwen3-0.6b) part peers-qwen3-0.6b 110 "peers qwen3-0.6b 10 80 90445 75139" ;;
        peers-llama-3.2-1b) part peers-llama-3.2-1b 100 "peers llama-3.2-1b 8 75 65889 57772" ;;
        peers-gpt2-124m) part peers-gpt2-124m 65 "peers gpt2-124m 12 50 438813 347715" ;;
        profile) tool profile 60 profile ncu ;;
        profile-qwen3-0.6b) tool profile-qwen3-0.6b 65 "profile_of qwen3-0.6b 1024" ncu ;;
        profile-llama-3.2-1b) tool profile-llama-3.2-1b 65 "profile_of llama-3.2-1b 551" ncu ;;
        long) part long 90 long ;;
        bench) part bench 110 "$bench_gpu --only ops,matmul,attention --seconds 100 --record $results/$call.jsonl" ;;
        peer) part peer 120 "$bench_gpu --only train --seconds 110 --record $results/$call-peer.jsonl" ;;
        ranks)
            if [ $dry = yes ] && ! command -v mpirun > /dev/null 2>&1; then
                tell ranks - "left out: no MPI, which NCCL's stand-in needs"
            else
                part ranks 45 ranks
            fi ;;
        trainings) part trainings 80 trainings ;;
        long-rows) part long-rows 110 long_rows ;;
        attention-cudnn) gpu attention-cudnn 30 "claims_of TEST_ATTENTION=cudnn test_attention" \
            "it has no cuDNN" ;;
        golden) gpu golden 130 "build/release/test/test_golden '$train' && build/release/test/test_device '$train'" \
            "$in_suite" ;;
        trees) gpu trees 90 trees "the suite has their claims on the emulated GPU" ;;
        stopped-rank) gpu stopped-rank 25 stopped_rank "$in_suite" ;;
        sanitizer) tool sanitizer 50 sanitizer compute-sanitizer ;;
        *) echo "gpu_oneshot: $1 is no part" >&2; exit 1 ;;
    esac
}
case $call in
    first) set -- versions build smoke-own hopper ops smoke-cudnn sweep rollouts peers-qwen3-0.6b ;;
    second) set -- versions build peers-llama-3.2-1b peers-gpt2-124m profile fp8 profile-qwen3-0.6b \
        profile-llama-3.2-1b long ranks trainings golden trees attention-cudnn bench stopped-rank long-rows peer \
        sanitizer ;;
esac
for name in "$@"; do
    run_part "$name" && continue
    [ "$name" = build ] || continue
    summary
    echo "gpu_oneshot: the build failed; the rest is left out" >&2
    exit 1
done
summary
! grep -qvE ' (ok|left out.*)$' "$work/parts"
