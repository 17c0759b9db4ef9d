// command.c - the command that started this program, up to its options: what a person pastes to go on.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "run/run.h"

// Our scripts say how they were called.
#define LAUNCHER_VARIABLE "RAGGED_LAUNCHER"

typedef struct Words {
    char* text;
    size_t n, room;
} Words;

static void add_word(Words* w, const char* word) {
    char quoted[CHECKPOINT_PATH];
    int n = snprintf(w->text + w->n, w->room - w->n, "%s%s", w->n ? " " : "", text_quoted(word, quoted, sizeof quoted));
    w->n = MIN(w->n + (size_t)n, w->room - 1);
}

// A launcher's command has this program's name as it was typed: the words up to it. Ranks of other nodes have a parent
// that was told otherwise. Whether there are any.
static int add_parent(Words* w, const char* program) {
    char path[64], words[CHECKPOINT_PATH];
    snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)getppid());
    FILE* file = fopen(path, "r");
    size_t n = file ? fread(words, 1, sizeof words - 1, file) : 0, before = w->n;
    if (file) fclose(file);
    words[n] = 0;
    for (const char* word = words; word < words + n; word += strlen(word) + 1) {
        if (word > words && !strcmp(word, program)) return 1;
        add_word(w, word);
    }
    w->text[w->n = before] = 0;
    return 0;
}

void run_find_command(Run* run, const char* program) {
    const RankIdentity* id = &run->identity;
    const char* launcher = getenv(LAUNCHER_VARIABLE);
    Words w = {run->command, 0, sizeof run->command};
    char ranks[32];
    run->command[0] = 0;
    if (launcher && *launcher) {
        snprintf(run->command, sizeof run->command, "%s", launcher);
        return;
    }
    if (strcmp(id->source, "alone") != 0 && !add_parent(&w, program)) {
        int is_torchrun = !strcmp(id->source, "torchrun"), is_slurm = !strcmp(id->source, "slurm");
        snprintf(ranks, sizeof ranks, "%d", id->size);
        add_word(&w, is_torchrun ? "torchrun" : is_slurm ? "srun" : "mpirun");
        if (is_torchrun) add_word(&w, "--no-python");
        add_word(&w, is_torchrun ? "--nproc-per-node" : "-n");
        add_word(&w, ranks);
    }
    add_word(&w, program);
}
