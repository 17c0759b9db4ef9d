#!/bin/sh
# picture.sh FOLDER - the picture in README.md: a step of 18 documents on eight ranks as FOLDER/plan.html, and where
# there is chromium as FOLDER/plan.png, of three plans, without the table. Prints what --explain says. TRAIN is the
# program, with its whole path.
cd "$1" || exit 1
for n in 30000 14000 9000 7000 6000 5000 4500 4000 3500 3000 2600 2400 2000 2000 1500 1000 700 300; do
    printf '{"text": "%s"}\n' "$(head -c $((n - 1)) /dev/zero | tr '\0' a)"
done > docs.jsonl
"${TRAIN:-$OLDPWD/train}" --ranks 8 --explain --data docs.jsonl --val docs.jsonl --machine a100-7b --capacity 6451 \
    --context 30000 --batch-tokens 98500 || exit 1
command -v chromium > /dev/null || { echo "no chromium, so no plan.png"; exit; }
{
    cat plan.html # the third plan, adaptive, is static here
    echo '<style> h1 + p, .wide, h2:nth-of-type(3), h2:nth-of-type(3) + p, h2:nth-of-type(3) + p + * { display: none }'
    echo '</style>'
} > picture.html
chromium --headless --no-sandbox --hide-scrollbars --window-size=980,772 --screenshot=plan.png picture.html 2> browser
[ -s plan.png ] || { cat browser; exit 1; }
