// library.h - cuBLASLt, cuDNN and NCCL are opened when they are first needed, not linked: a program built with CUDA
// starts on a machine that lacks one of them, and says which when it is asked for.
#pragma once
extern "C" {
#include "plan/base/base.h"
}

// One function of a library: its name, and the pointer that gets its address.
typedef struct LibrarySymbol {
    const char* name;
    void** address;
} LibrarySymbol;

// Opens the first file of `files` (NULL at the end) that is found by the loader, beside the CUDA toolkit or in a Python
// environment, and looks up n symbols. 0, or -1 with a message that names the library and what to install.
int library_open(const char* library, const char* const* files, const LibrarySymbol* symbols, int n, Err err);
