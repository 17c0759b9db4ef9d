// writing.c - copies on their way to files, on a thread while training goes on: see files.h.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "run/files/files.h"

void writing_begin(Writing* x, Run* run) {
    *x = (Writing){.run = run, .step = run->state.step, .is_begun = 1, .began = now_seconds()};
}

static void* write_files(void* argument) {
    Writing* x = (Writing*)argument;
    x->failed = x->write(x);
    atomic_store(&x->written, 1);
    return NULL;
}

void writing_start(Writing* x, int (*write)(Writing* x), int may_be_apart) {
    x->write = write;
    x->is_apart = may_be_apart && host_begin_thread(&x->thread, write_files, x);
    if (!x->is_apart) write_files(x);
    x->blocked = now_seconds() - x->began;
}

int writing_is_done(const Writing* x) { return x->is_begun && atomic_load(&x->written); }

void writing_wait(Writing* x) {
    if (x->is_apart) pthread_join(x->thread, NULL);
    x->is_apart = 0;
}

double writing_tell(Writing* x, const char* event, const char* path) {
    char members[6 * CHECKPOINT_PATH + 128] = ", \"path\": ";
    double seconds = now_seconds() - x->began;
    size_t n = strlen(members);
    n += json_quote(members + n, path, strlen(path));
    snprintf(members + n, sizeof members - n, ", \"save_blocked_ms\": %.3f, \"save_seconds\": %.3f", 1e3 * x->blocked,
             seconds);
    runlog_event(&x->run->books->log, event, x->step, members);
    return seconds;
}

int writing_leave(Writing* x, int status) {
    state_copy_free(&x->copy);
    x->is_begun = 0;
    return status;
}
