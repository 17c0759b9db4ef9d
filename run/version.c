// version.c - what this program is: --version.
#include <stdio.h>

#include "run/run.h"

void run_print_version(void) {
    printf("ragged " RUN_VERSION "\n");
    printf("compiled by "
#ifndef __clang__
           "gcc "
#endif
           __VERSION__
#ifdef HAVE_CUDA
           ", with CUDA"
#endif
#ifdef HAVE_MPI
           ", with MPI"
#endif
           "\n");
}
