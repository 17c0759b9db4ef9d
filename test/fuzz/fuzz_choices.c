// fuzz_choices.c - any bytes as a question of --eval: what is accepted has strings and a label among them.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/choices.h"
#include "plan/base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    char err[ERR_BYTES], *text = malloc(n + 1);
    Choice choice;
    memcpy(text, data, n);
    if (choice_parse(&choice, text, n, err) == 0) {
        if (choice.n < 2 || choice.label < 0 || choice.label >= choice.n || !choice.context) abort();
        for (int i = 0; i < choice.n; i++)
            if (strlen(choice.endings[i]) > n) abort();
        choice_free(&choice);
    }
    free(text);
    return 0;
}
