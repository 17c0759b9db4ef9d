// fuzz_index.c - model.safetensors.index.json of any content beside two files with a tensor each; whatever is accepted
// are these files, once each.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/model_files.h"
#include "plan/base/disk.h"
#include "test/fuzz/require.h"

static char dir[64];

static void remove_dir(void) { disk_remove_tree(dir, NULL); }

static void make_dir(void) {
    static const float value = 1;
    char path[DISK_PATH], err[ERR_BYTES];
    strcpy(dir, "/tmp/fuzz_index.XXXXXX");
    require(mkdtemp(dir) != NULL);
    atexit(remove_dir);
    for (int i = 0; i < 2; i++) {
        SafeTensor t = {"a", DT_F32, 0, {0}, &value, sizeof value, 0};
        t.name[0] += (char)i;
        require(disk_join(path, dir, i ? "2" : "1", err) == 0);
        require(safetensors_write(path, NULL, &t, 1, NULL, NULL, err) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    char path[DISK_PATH], err[ERR_BYTES] = "";
    HfFiles files;
    if (!dir[0]) make_dir();
    require(disk_join(path, dir, "model.safetensors.index.json", err) == 0);
    FILE* file = fopen(path, "wb");
    require(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
    if (hf_open(&files, dir, err)) {
        require(err[0] && memchr(err, 0, sizeof err) && !files.n);
        return 0;
    }
    for (int i = 0; i < files.n; i++)
        require(files.list[i].n == 1 && strchr("ab", files.list[i].tensors[0].name[0]) && files.n <= 2);
    hf_close(&files);
    return 0;
}
