// library.cu - finds the CUDA libraries, see library.h.
//
// It tries the loader's own paths, then the toolkit's, then Python's wheels, site-packages/nvidia/<library>/lib: it
// asks python3 where its packages lie.
#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "plan/base/base.h"
}

// Opens the first match of a shell pattern; NULL when there is none or it does not load.
static void* open_pattern(const char* pattern) {
    glob_t found;
    void* handle = NULL;
    if (glob(pattern, 0, NULL, &found)) return NULL;
    for (size_t i = 0; i < found.gl_pathc && !handle; i++) handle = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL);
    globfree(&found);
    return handle;
}

// Looks in the directories where python3 finds packages, which it prints one a line.
static void* open_wheel(const char* file) {
    char folder[1024], path[2048];
    void* handle = NULL;
    FILE* python = popen(
        "python3 -c 'import site, sys\nfor path in site.getsitepackages() + "
        "[site.getusersitepackages()] + sys.path: print(path)' 2> /dev/null",
        "r");
    if (!python) return NULL;
    while (fgets(folder, sizeof folder, python)) {
        folder[strcspn(folder, "\n")] = 0;
        snprintf(path, sizeof path, "%s/nvidia/*/lib/%s", folder, file);
        if (!handle && folder[0] == '/') handle = open_pattern(path);
    }
    pclose(python);
    return handle;
}

static void* open_anywhere(const char* file) {
    const char* const roots[] = {getenv("CUDA_HOME"), "/usr/local/cuda", "/opt/cuda"};
    char path[1024];
    void* handle = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    for (int i = 0; i < COUNT(roots) && !handle; i++) {
        if (!roots[i]) continue;
        snprintf(path, sizeof path, "%s/lib*/%s", roots[i], file);
        handle = open_pattern(path);
    }
    return handle ? handle : open_wheel(file);
}

int library_open(const char* library, const char* const* files, const LibrarySymbol* symbols, int n, Err err) {
    void* handle = NULL;
    for (const char* const* file = files; *file && !handle; file++) handle = open_anywhere(*file);
    if (!handle)
        return fail(err, "%s is missing: no %s on the library path; install it, or add its folder to LD_LIBRARY_PATH",
                    library, files[0]);
    for (int i = 0; i < n; i++) {
        *symbols[i].address = dlsym(handle, symbols[i].name);
        if (!*symbols[i].address)
            return fail(err, "%s is too old: it has no %s; install a newer one", library, symbols[i].name);
    }
    return 0;
}
