// fuzz_prune.c - files of what a rank keeps: any bytes, and a good file edited at will, to their reader. Whatever it
// accepts are the values of the good file or sensible ones of another; whatever it refuses fills nothing, and gives
// words.
#include <float.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/prune_file.h"
#include "plan/disk.h"
#include "test/fuzz/require.h"

enum { LAYERS = 2, TABLES = 2, MOST = 8, MOST_BYTES = 1 << 12 };

static const int widths[TABLES] = {3, 8};
static float values[2][TABLES][LAYERS * MOST], kept[2][TABLES][LAYERS * MOST];  // written, read
static unsigned char good[MOST_BYTES];
static size_t n_good;

static void make_tables(PruneTable tables[TABLES], int which) {
    static const char* const names[TABLES] = {"heads", "units"};
    for (int t = 0; t < TABLES; t++)
        tables[t] = (PruneTable){names[t], widths[t], which ? -1 : widths[t] - 1, values[which][t], kept[which][t]};
}

static void make_good(void) {
    char path[] = "/tmp/fuzz_prune_XXXXXX", err[ERR_BYTES];
    PruneTable tables[TABLES];
    uint64_t bytes;
    for (int t = 0; t < TABLES; t++)
        for (int i = 0; i < LAYERS * widths[t]; i++) values[0][t][i] = (float)i, kept[0][t][i] = i % widths[t] != 1;
    make_tables(tables, 0);
    close(mkstemp(path));
    require(!prune_file_write(tables, TABLES, LAYERS, path, err, sizeof err));
    int fd = disk_open(path, &bytes, err, sizeof err);
    require(fd >= 0 && bytes <= MOST_BYTES && disk_read(fd, good, bytes) == (int64_t)bytes);
    close(fd);
    unlink(path);
    n_good = (size_t)bytes;
}

static void check_taken(const PruneTable* table) {
    require(table->stay >= 0 && table->stay <= table->n);
    for (int i = 0; i < LAYERS * table->n; i++) {
        require(table->value[i] >= 0 && table->value[i] <= FLT_MAX);
        require(table->kept[i] == 1 || (table->kept[i] == 0 && i % table->n < table->stay));
    }
}

// 1 where the reader took it.
static int check(const unsigned char* bytes, size_t n) {
    char err[ERR_BYTES] = "";
    PruneTable tables[TABLES];
    SafeTensors file;
    make_tables(tables, 1);
    memset(values[1], 0xff, sizeof values[1]);
    memset(kept[1], 0xff, sizeof kept[1]);
    if (safetensors_parse(&file, bytes, n, err, sizeof err)) return 0;
    int refused = prune_file_take(tables, TABLES, LAYERS, &file, err, sizeof err);
    if (refused) {
        require(err[0] && memchr(err, 0, sizeof err) && tables[0].stay == -1 && tables[1].stay == -1);
        const unsigned char *v = (const unsigned char*)values[1], *k = (const unsigned char*)kept[1];
        for (size_t i = 0; i < sizeof values[1]; i++) require(v[i] == 0xff && k[i] == 0xff);
    } else
        for (int t = 0; t < TABLES; t++) check_taken(&tables[t]);
    safetensors_close(&file);
    return !refused;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (!n_good) make_good();
    check(data, size);
    unsigned char* edited = (unsigned char*)malloc(n_good);  // of its size, so that reading past it is seen
    memcpy(edited, good, n_good);
    for (size_t at = 0; at + 3 <= size; at += 3) edited[(data[at] << 8 | data[at + 1]) % n_good] = data[at + 2];
    require(check(edited, n_good) || size >= 3);
    free(edited);
    return 0;
}
