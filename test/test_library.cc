// test_library.cc - CUDA's libraries are found where Python's wheels put them, see kernels/cuda/library.h. No GPU, no
// CUDA: a library is made here, and a python3 that knows where it lies.
extern "C" {
#include "plan/base/base.h"
#include "test/temporary.h"
}
#include "kernels/cuda/library.h"

static char err[ERR_BYTES];
static int (*answer)(void);
static const LibrarySymbol symbols[] = {{"ragged_fake_answer", (void**)&answer}};

CLAIM(a_library_in_a_wheel_is_found_where_python_says_its_packages_lie) {
    static const char* const files[] = {"libragged_fake.so.9", "libragged_fake.so", NULL};
    char path[8192];
    if (shell("mkdir -p $W/bin $W/site/nvidia/cu13/lib && echo 'int ragged_fake_answer(void) { return 42; }' | "
              "cc -shared -fPIC -x c - -o $W/site/nvidia/cu13/lib/libragged_fake.so"))
        SKIP("cc makes no shared library here");
    CHECK(shell("printf '#!/bin/sh\\necho\\necho /nowhere\\necho '$W'/site\\n' > $W/bin/python3 && "
                "chmod +x $W/bin/python3") == 0);
    CHECK(library_open("fake", files, symbols, 1, err) == -1);
    snprintf(path, sizeof path, "%s/bin:%s", work, getenv("PATH"));
    setenv("PATH", path, 1);
    CHECK(library_open("fake", files, symbols, 1, err) == 0 && answer && answer() == 42);
}

CLAIM(a_library_that_is_nowhere_is_named_with_the_remedy) {
    static const char* const files[] = {"libragged_nowhere.so.1", NULL};
    CHECK(library_open("nowhere", files, symbols, 1, err) == -1);
    CHECK(strstr(err, "nowhere is missing") && strstr(err, "libragged_nowhere.so.1") && strstr(err, "install"));
}

int main(void) {
    temporary_begin();
    run_claims();
    return temporary_end();
}
