// hf_index.c - one file or many; see hf_index.h.
#include "data/hf_index.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/disk.h"

#define ONE_FILE "model.safetensors"
#define INDEX ONE_FILE ".index.json"

enum { NAME = sizeof(((SafeTensor*)0)->name), MOST_BYTES = 1 << 26 };

int hf_index_has_model(const char* dir) { return disk_is_file(dir, ONE_FILE) || disk_is_file(dir, INDEX); }

// The number of the file of this name, opened if it is not yet; -1 with a message.
static int file_of(HfIndex* index, const char* dir, const char* name, char* err, size_t errlen) {
    char path[DISK_PATH];
    if (strchr(name, '/'))
        return fail(err, errlen, "%s/" INDEX ": expected the name of a file in this directory, found %.100s", dir,
                    name);
    if (disk_join(path, dir, name, err, errlen)) return -1;
    for (int i = 0; i < index->n_files; i++)
        if (!strcmp(index->files[i].path, path)) return i;
    SafeTensors* files = (SafeTensors*)realloc(index->files, sizeof *files * ((size_t)index->n_files + 1));
    if (!files) return fail(err, errlen, "%s: no memory for a list of %d files", dir, index->n_files + 1);
    index->files = files;
    if (safetensors_open(&files[index->n_files], path, err, errlen)) return -1;
    if (index->n_files > 0) safetensors_rest(&files[index->n_files]);
    return index->n_files++;
}

// A string of at most NAME bytes with its NUL, without control characters. 0, or -1.
static int plain_string(const JsonValue* v, char text[NAME]) {
    char long_text[6 * NAME];
    int64_t n = v->length < sizeof long_text ? json_string(v, long_text) : -1;
    if (n < 0 || n >= NAME) return -1;
    memcpy(text, long_text, (size_t)n + 1);
    for (int64_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < ' ') return -1;
    return 0;
}

// A member of weight_map: the name of a tensor, behind it that of its file.
static int add_tensor(HfIndex* index, const char* dir, const JsonValue* key, char* err, size_t errlen) {
    char name[NAME], file[NAME];
    if (plain_string(key, name) || plain_string(key + 1, file))
        return fail(err, errlen, "%s/" INDEX ": expected names of a tensor and of its file, found %.*s", dir,
                    (int)MIN(key->length, (size_t)80), key->text);
    int f = file_of(index, dir, file, err, errlen);
    if (f < 0) return -1;
    const SafeTensor* tensor = safetensors_get(&index->files[f], name);
    if (!tensor)
        return fail(err, errlen, "%s: expected a tensor %s, as " INDEX " says, found none", index->files[f].path, name);
    index->tensors[index->n++] = (HfTensor){tensor, f};
    return 0;
}

static int add_map(HfIndex* index, const char* dir, const Json* json, char* err, size_t errlen) {
    const JsonValue* map = json_get(json, json->values, "weight_map");
    if (!map || map->type != JSON_OBJECT) return fail(err, errlen, "%s/" INDEX ": expected an object weight_map", dir);
    index->tensors = (HfTensor*)malloc(sizeof(HfTensor) * ((size_t)map->n + 1));
    if (!index->tensors) return fail(err, errlen, "%s: no memory for a list of %d tensors", dir, map->n);
    const JsonValue* key = map + 1;
    for (int i = 0; i < map->n; i++, key = &json->values[key[1].next])
        if (add_tensor(index, dir, key, err, errlen)) return -1;
    return 0;
}

static int open_several(HfIndex* index, const char* dir, char* err, size_t errlen) {
    char path[DISK_PATH], why[ERR_BYTES];
    Json json;
    size_t n = 0;
    char* text = disk_join(path, dir, INDEX, err, errlen) ? NULL : disk_read_file(path, MOST_BYTES, &n, err, errlen);
    if (!text) return -1;
    int bad = json_parse(&json, text, n, why, sizeof why);
    int result = bad ? fail(err, errlen, "%s: %s", path, why) : add_map(index, dir, &json, err, errlen);
    if (!bad) json_free(&json);
    free(text);
    return result;
}

static int open_one(HfIndex* index, const char* dir, char* err, size_t errlen) {
    int f = file_of(index, dir, ONE_FILE, err, errlen);
    if (f < 0) return -1;
    const SafeTensors* file = &index->files[f];
    index->tensors = (HfTensor*)malloc(sizeof(HfTensor) * ((size_t)file->n + 1));
    if (!index->tensors) return fail(err, errlen, "%s: no memory for a list of %d tensors", dir, file->n);
    for (; index->n < file->n; index->n++) index->tensors[index->n] = (HfTensor){&file->tensors[index->n], f};
    return 0;
}

int hf_index_open(HfIndex* out, const char* dir, char* err, size_t errlen) {
    memset(out, 0, sizeof *out);
    int has_one = disk_is_file(dir, ONE_FILE) || !disk_is_file(dir, INDEX);
    if ((has_one ? open_one : open_several)(out, dir, err, errlen) == 0) return 0;
    hf_index_close(out);
    return -1;
}

void hf_index_close(HfIndex* index) {
    for (int i = 0; i < index->n_files; i++) safetensors_close(&index->files[i]);
    free(index->files);
    free(index->tensors);
    memset(index, 0, sizeof *index);
}

const HfTensor* hf_index_get(const HfIndex* index, const char* name) {
    for (int i = 0; i < index->n; i++)
        if (!strcmp(index->tensors[i].tensor->name, name)) return &index->tensors[i];
    return NULL;
}
