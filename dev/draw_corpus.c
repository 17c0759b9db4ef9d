// draw_corpus.c - documents of synthetic lengths as JSONL, for virtual ranks: see dev/lengths.h for the lengths.
//
//   build/release/dev/draw_corpus wikipedia 2048 65536 > corpus.jsonl     NAME DOCUMENTS LONGEST [SEED]
//
// A document of s tokens is s - 1 letters, as bytes: an end-of-text token precedes each.
#include <stdio.h>
#include <stdlib.h>

#include "dev/lengths.h"

int main(int argc, char** argv) {
    char err[ERR_BYTES];
    int n = argc > 2 ? atoi(argv[2]) : 0, longest = argc > 3 ? atoi(argv[3]) : 0;
    if (argc < 4 || n < 1 || longest < 2)
        die("usage: draw_corpus NAME DOCUMENTS LONGEST [SEED]; names: %s", lengths_names());
    Lengths* lengths = lengths_open(argv[1], longest, longest, err);
    int* drawn = (int*)calloc((size_t)n, sizeof(int));
    if (!lengths) die("%s", err);
    if (!drawn) die("no memory for %d lengths", n);
    lengths_draw(lengths, drawn, n, argc > 4 ? strtoull(argv[4], NULL, 10) : 1, 0);
    for (int i = 0; i < n; i++) {
        fputs("{\"text\": \"", stdout);
        for (int t = 1; t < MAX(2, drawn[i]); t++) putchar('a' + i % 26);
        fputs("\"}\n", stdout);
    }
    lengths_close(lengths);
    free(drawn);
    return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
