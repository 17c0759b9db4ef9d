// fuzz_index.c - model.safetensors.index.json of any content beside two files with a tensor each; whatever is accepted
// names these tensors alone, each in the file that has it.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/hf_index.h"
#include "plan/disk.h"
#include "test/fuzz/require.h"

static char dir[64];

static void remove_dir(void) { disk_remove_tree(dir, NULL, 0); }

static void make_dir(void) {
    static const float value = 1;
    char path[DISK_PATH], err[ERR_BYTES];
    strcpy(dir, "/tmp/fuzz_index.XXXXXX");
    require(mkdtemp(dir) != NULL);
    atexit(remove_dir);
    for (int i = 0; i < 2; i++) {
        SafeTensor t = {"a", DT_F32, 0, {0}, &value, sizeof value, 0};
        t.name[0] += (char)i;
        require(disk_join(path, dir, i ? "2" : "1", err, sizeof err) == 0);
        require(safetensors_write(path, &t, 1, NULL, NULL, err, sizeof err) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    char path[DISK_PATH], err[ERR_BYTES] = "";
    HfIndex index;
    if (!dir[0]) make_dir();
    require(disk_join(path, dir, "model.safetensors.index.json", err, sizeof err) == 0);
    FILE* file = fopen(path, "wb");
    require(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
    if (hf_index_open(&index, dir, err, sizeof err)) {
        require(err[0] && memchr(err, 0, sizeof err) && !index.n && !index.n_files);
        return 0;
    }
    for (int i = 0; i < index.n; i++) {
        const HfTensor* t = &index.tensors[i];
        const char* name = t->tensor->name;
        require((!strcmp(name, "a") || !strcmp(name, "b")) && t->file < index.n_files);
        require(safetensors_get(&index.files[t->file], name) == t->tensor);
        require(hf_index_get(&index, name)->tensor == t->tensor);
    }
    hf_index_close(&index);
    return 0;
}
