// linked_library.cc - kernels/cuda/library.h for the emulator: the libraries are the stand-ins that are linked into the
// program itself (-rdynamic).
#include "kernels/cuda/library.h"

#include <dlfcn.h>

extern "C" {
#include "plan/base/base.h"
}

int library_open(const char* library, const char* const*, const LibrarySymbol* symbols, int n, Err err) {
    void* handle = dlopen(nullptr, RTLD_NOW);
    for (int i = 0; i < n; i++) {
        *symbols[i].address = dlsym(handle, symbols[i].name);
        if (!*symbols[i].address) return fail(err, "the emulator has no %s of %s", symbols[i].name, library);
    }
    return 0;
}
