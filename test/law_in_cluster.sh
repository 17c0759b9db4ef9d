#!/bin/sh
# law_in_cluster.sh TEST_LAW [PROGRAM] - the first law across machines: two nodes of two ranks with links between them
# (dev/cluster). Skipped, with the reason, where this machine cannot make nodes.
out=$(TMPDIR=/tmp dev/cluster/run.sh --nodes 2 --ranks-per-node 2 --rate 400mbit --timeout 200 -- \
    env TMPDIR=/tmp "$1" --plan node-size=2 2>&1)
status=$?
if [ $status = 77 ]; then
    echo "  skipped the law across machines: $(echo "$out" | sed -n 's/^cluster: //p' | tail -n 1)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
echo "$out" | grep -E '^ranks|^ +(ok|FAILED)|test_law.c:|LAW_SEED|seed|^cluster:|^[0-9]+ passed'
exit $status
