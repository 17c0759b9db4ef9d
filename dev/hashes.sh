#!/bin/sh
# hashes.sh - what a change that only moves code must not change: loss hash, hash of the weights and bytes sent of small
# runs that take every path of the trainer, and hashes of plans. Print them before and after, and compare:
#
#   make build/release/train build/release/test/test_flex && dev/hashes.sh > before      ... change ...      > after
#
# Needs Open MPI; a minute on two cores. The corpus is made here, machines are fixed, so the digits repeat.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
train=${TRAIN:-build/release/train}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
awk 'BEGIN { x = 1; for (d = 0; d < 400; d++) { t = ""; x = (x * 1103515245 + 12345) % 2147483648
    for (i = x % 90 + 3; i > 0; i--) { x = (x * 1103515245 + 12345) % 2147483648; t = t "w" x % 97 " " }
    printf "{\"text\": \"%s\"}\n", t } }' > "$work/text.jsonl"

# one NAME RANKS OPTIONS: a run of six steps.
one() {
    name=$1 ranks=$2
    shift 2
    launch=""
    [ "$ranks" = 1 ] || launch="mpirun --oversubscribe --bind-to none -n $ranks"
    $launch "$train" --data "$work/text.jsonl" --threads 1 --steps 6 --context 256 --batch-tokens 2048 --warmup 2 \
        --eval-every 3 --sample-every 0 --save-every 6 --out "$work/$name" "$@" > "$work/$name.txt" 2>&1 < /dev/null ||
        { echo "$name failed: $(tail -n 1 "$work/$name.txt")"; return; }
    weights=$(cat "$work/$name"/step-000006/model*.safetensors 2> /dev/null | md5sum | cut -c 1-12)
    sent=$(grep -o '"bytes": {[^}]*}' "$work/$name/log.jsonl" | md5sum | cut -c 1-12)
    times=$(grep -o '"measured_ms": [^,]*' "$work/$name/log.jsonl" | md5sum | cut -c 1-12)
    [ "${name#virtual}" = "$name" ] && times=""
    echo "$name $(sed -n 's/.*loss hash \([0-9a-f]*\).*/\1/p' "$work/$name.txt") weights $weights sent $sent $times"
}
few="--plan static"
one alone 1
one reference 1 --cpu-isa reference --dtype fp32
one fp32 1 --dtype fp32
one llama 1 --preset llama-tiny
one qwen2 1 --arch qwen2,kv-heads=2
one qwen3 1 --arch qwen3,kv-heads=2 --dtype fp32
one recompute 1 --recompute block
one stochastic 1 --dtype rounding=stochastic
one two 2 $few
one three 3 $few --cp 3,kind=ring --dtype fp32
one ulysses 4 $few --cp 4 --zero 2
one flex 4 --machine a100-7b --capacity 512
one rounds 4 --machine a100-7b --capacity 512 --zero 3
one zeppelin 4 --machine a100-7b --capacity 128 --plan zeppelin,remap=yes,route=yes
one flexsp 4 --machine a100-7b --capacity 256 --plan flexsp --zero 3
one tp 2 $few --tp 2
one tp3 3 $few --tp 3 --zero 2 --preset llama-tiny
one pp 4 $few --machine a100-7b --pp 2
one layout 4 $few --machine a100-7b --tp 2 --pp 2 --zero 3
one strategies 4 --machine a100-7b --capacity 200 --strategies "4xtp1; tp2+2xtp1; tp4"
one strategies_divided 4 --machine a100-7b --capacity 200 --zero 3 --dtype grads=bf16 --strategies "4xtp1; 2xtp2; tp4"
slow="--tp 2 --plan refresh=2 --device virtual-cpu --machine h200-8b --straggle rank=1,x=4"
one migrate 2 $few $slow --balance migrate
one resize 2 $few $slow --balance resize
virtual="--device virtual --machine h200-8b --eval-every 0 --save-every 0"
one virtual 8 $virtual
one virtual_layout 8 $virtual --tp 2 --pp 2 --zero 3
one virtual_strategies 8 $virtual --strategies "8xtp1; tp4+4xtp1"
