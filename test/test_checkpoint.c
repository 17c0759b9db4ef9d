// test_checkpoint.c - claims about data/checkpoint.c: what a save leaves, what is found, cleaned up and kept, also
// where files rot and where directories cannot be. (Full disks and kills: test/faults, test_cli.c, test_resume.c.)
#include <sys/wait.h>

#include "data/json.h"
#include "test/checkpoint_dirs.h"
#include "test/readers.h"

// ---- a save

CLAIM(a_commit_gives_a_directory_that_verifies) {
    CheckpointWriter w;
    char path[CHECKPOINT_PATH];
    size_t n = 0;
    fresh("plain/with/parents");
    CHECK(latest_step() == -1);
    begin(&w, 100);
    CHECK(exists(in(run_dir, "step-000100.tmp")) && !strcmp(w.dir, in(run_dir, "step-000100.tmp")));
    CHECK(latest_step() == -1);
    CHECK(checkpoint_commit(&w, 0, err) == 0);
    CHECK(latest(path) == 100);
    CHECK_STRING(path, in(run_dir, "step-000100"));
    CHECK(!exists(w.dir) && checkpoint_verify(path, err) == 0);
    char* text = checkpoint_read_file(path, "config.json", &n, err);
    CHECK(text && n == 8 && !strcmp(text, "{\"a\": 1}"));
    free(text);
}

CLAIM(the_marker_lists_every_file_with_size_and_hash) {
    char name[CHECKPOINT_PATH], hash[32], expected[32];
    size_t n = 0;
    Json json;
    uint64_t bytes = 0;
    int64_t step = 0;
    fresh("marker");
    save(7, 0);
    char* text = checkpoint_read_file(step_dir(7), "DONE", &n, err);
    CHECK(text && json_parse(&json, text, n, err) == 0);
    const JsonValue* files = json_get(json.values, "files");
    CHECK(json_int64(json_get(json.values, "step"), &step) == 0 && step == 7);
    CHECK(files && files->n == 3);
    const JsonValue* model = json_at(files, 2);
    snprintf(expected, sizeof expected, "%016llx", (unsigned long long)hash_bytes("not really a model", 18, 0));
    CHECK(json_string(json_get(model, "name"), name) == 17 && !strcmp(name, "model.safetensors"));
    CHECK(json_uint64(json_get(model, "bytes"), &bytes) == 0 && bytes == 18);
    CHECK(json_string(json_get(model, "hash"), hash) == 16 && !strcmp(hash, expected));
    json_free(&json);
    free(text);
}

CLAIM(an_aborted_save_leaves_nothing) {
    CheckpointWriter w;
    fresh("aborted");
    begin(&w, 3);
    CHECK(mkdir(in(w.dir, "deeper"), 0777) == 0);
    write_file(in(w.dir, "deeper/file"), "x", 1);
    checkpoint_abort(&w);
    CHECK(!exists(w.dir) && !exists(w.final) && exists(run_dir) && latest_step() == -1);
    checkpoint_abort(&w);
}

CLAIM(names_of_files_are_plain) {
    static const char* const bad[] = {"",     ".",      "..",   "a/b",  "/etc/passwd", "../x",
                                      "DONE", "SAVING", "a\"b", "\xff", ".x"};
    char longest[200] = "";
    CheckpointWriter w;
    fresh("names");
    begin(&w, 1);
    memset(longest, 'x', sizeof longest - 1);
    for (int i = 0; i <= COUNT(bad); i++) {
        const char* name = i < COUNT(bad) ? bad[i] : longest;
        CHECK(checkpoint_write_file(&w, name, "x", 1, err) == -1 && strstr(err, "plain file name"));
        CHECK(checkpoint_add_file(&w, name, 1, 1, err) == -1 && strstr(err, "plain file name"));
    }
    CHECK(!exists(in(run_dir, "x")) && !exists(in(w.dir, "DONE")));
    checkpoint_abort(&w);
    CHECK(!exists(w.dir));
}

// ---- a save by several processes

CLAIM(another_process_joins_a_save_that_was_begun) {
    CheckpointWriter first, second;
    fresh("joined");
    CHECK(checkpoint_join(&second, run_dir, 5, err) == -1 && strstr(err, run_dir) && strstr(err, "--out"));
    CHECK(!exists(run_dir));
    begin(&first, 5);
    CHECK(checkpoint_join(&second, run_dir, 6, err) == -1 && strstr(err, "step-000006.tmp"));
    CHECK(checkpoint_join(&second, run_dir, 5, err) == 0);
    CHECK(!strcmp(second.dir, first.dir) && !strcmp(second.final, first.final));
    CHECK(checkpoint_write_file(&second, "part", "x", 1, err) == 0 && add(&first, "part") == 0);
    CHECK(checkpoint_commit(&first, 0, err) == 0);
    CHECK(exists(in(first.final, "part")) && exists(in(first.final, "state.json")));
    CHECK(checkpoint_join(&second, run_dir, 5, err) == -1);
}

// The last file is another process's, of which this one is told.
static int commit_with(uint64_t bytes, uint64_t hash, int is_there) {
    CheckpointWriter w;
    begin(&w, 2);
    if (is_there) write_file(in(w.dir, "other"), "content", 7);
    if (checkpoint_add_file(&w, "other", bytes, hash, err) == 0) return checkpoint_commit(&w, 1, err);
    checkpoint_abort(&w);
    return -1;
}

CLAIM(a_file_of_another_process_is_in_the_marker_as_told_and_not_read_again) {
    uint64_t hash = hash_bytes("content", 7, 0);
    fresh("told");
    CHECK(commit_with(7, hash, 1) == 0 && is_whole(2));
    write_file(in(step_dir(2), "other"), "Content", 7);
    CHECK(is_bad(2, "/other"));
    CHECK(commit_with(7, hash + 1, 1) == 0 && is_bad(2, "/other"));  // believed, so that it can be found to be wrong
}

CLAIM(a_file_that_never_came_or_came_short_is_not_committed) {
    fresh("untold");
    save(1, 0);
    CHECK(commit_with(7, 1, 0) == -1 && strstr(err, "/other") && strstr(err, "--out"));
    CHECK(latest_step() == 1 && !is_there(2) && !exists(in(run_dir, "step-000002.tmp")));
    CHECK(commit_with(8, 1, 1) == -1 && strstr(err, "/other: expected 8 bytes as written, found 7"));
    CHECK(latest_step() == 1 && !is_there(2) && !exists(in(run_dir, "step-000002.tmp")));
}

// ---- what is found

CLAIM(only_final_names_with_a_marker_are_found) {
    static const char* const others[] = {"step-000900.tmp",     "step-9",   "step-0000901", "step-00x902",
                                         "step--00903",         "step-",    "step-+00904",  "STEP-000905",
                                         "step-000906.old.tmp", "log.jsonl"};
    fresh("found");
    CHECK(latest_step() == -1);
    CHECK(mkdir(run_dir, 0777) == 0 && latest_step() == -1);
    for (int i = 0; i < COUNT(others); i++) {
        CHECK(mkdir(in(run_dir, others[i]), 0777) == 0);
        write_file(in(in(run_dir, others[i]), "DONE"), "{\"step\": 1, \"files\": []}", 24);
    }
    CHECK(mkdir(in(run_dir, "step-000800"), 0777) == 0);
    write_file(in(run_dir, "step-000800/state.json"), "{}", 2);
    CHECK(mkdir(in(run_dir, "step-000801"), 0777) == 0 && mkdir(in(run_dir, "step-000801/DONE"), 0777) == 0);
    write_file(in(run_dir, "step-000802"), "a file", 6);
    CHECK(latest_step() == -1);
    CHECK(is_bad(800, "DONE"));
    save(5, 1);
    CHECK(latest_step() == 5 && is_whole(5));
    CHECK(exists(in(run_dir, "step-000800/state.json")) && exists(in(run_dir, "step-9/DONE")));
}

CLAIM(steps_of_any_size_have_names) {
    static const int64_t steps[] = {999999, 1000000, 0, INT64_MAX};
    fresh("numbers");
    for (int i = 0; i < COUNT(steps); i++) {
        save(steps[i], 0);
        CHECK(is_there(steps[i]) && latest_step() == steps[i]);
    }
}

// ---- leftovers

CLAIM(leftovers_are_removed) {
    CheckpointWriter w;
    fresh("leftovers");
    begin(&w, 10), forget(&w);  // never committed
    begin(&w, 20), forget(&w);  // nor this
    write_file(in(w.dir, "garbage"), "x", 1);
    begin(&w, 20);
    CHECK(!exists(in(w.dir, "garbage")));
    CHECK(mkdir(in(run_dir, "step-000005.old.tmp"), 0777) == 0);
    write_file(in(run_dir, "step-000005.old.tmp/file"), "x", 1);
    write_file(in(run_dir, "step-000005.old.tmp/DONE"), "x", 1);
    CHECK(checkpoint_commit(&w, 0, err) == 0);
    CHECK(!exists(in(run_dir, "step-000010.tmp")) && !exists(in(run_dir, "step-000005.old.tmp")));
    CHECK(latest_step() == 20 && is_whole(20));
}

CLAIM(a_directory_without_marker_is_set_aside_by_the_commit) {
    fresh("replaced");
    CHECK(mkdir(run_dir, 0777) == 0 && mkdir(in(run_dir, "step-000004"), 0777) == 0);
    write_file(in(run_dir, "step-000004/old"), "x", 1);
    save(4, 0);
    CHECK(!exists(in(run_dir, "step-000004/old")) && exists(in(run_dir, "step-000004.damaged/old")));
    CHECK(latest_step() == 4 && is_whole(4));
}

CLAIM(a_checkpoint_of_the_same_step_is_replaced) {
    CheckpointWriter w;
    fresh("again");
    save(4, 0);
    write_file(in(run_dir, "step-000004/model.safetensors"), "not really a mOdel", 18);  // damaged or not
    CHECK(checkpoint_begin(&w, run_dir, 4, err) == 0);
    CHECK(checkpoint_write_file(&w, "other", "y", 1, err) == 0);
    CHECK(exists(in(run_dir, "step-000004/config.json")));
    CHECK(checkpoint_commit(&w, 1, err) == 0);
    CHECK(exists(in(run_dir, "step-000004/other")) && !exists(in(run_dir, "step-000004/config.json")));
    CHECK(!exists(w.dir) && !exists(in(run_dir, "step-000004.old.tmp")) && latest_step() == 4);
}

// ---- keep

CLAIM(only_the_newest_are_kept) {
    static const struct {
        int keep, oldest;
    } saves[] = {{0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {3, 5}, {100, 5}, {-1, 5}, {1, 10}};
    fresh("keep");
    for (int step = 1; step <= COUNT(saves); step++) {
        save(step, saves[step - 1].keep);
        for (int i = 1; i <= step; i++) CHECK(is_there(i) == (i >= saves[step - 1].oldest));
    }
    CHECK(latest_step() == 10 && is_whole(10));
}

CLAIM(checkpoints_of_another_run_behind_links_stay_whole) {
    char theirs[sizeof run_dir];
    CheckpointWriter w;
    fresh("theirs");
    save(1, 0), save(2, 0);
    strcpy(theirs, run_dir);
    fresh("links");
    save(3, 0);
    CHECK(symlink(in(theirs, "step-000001"), step_dir(1)) == 0);  // an older checkpoint
    CHECK(symlink(in(theirs, "step-000002"), in(run_dir, "step-000007.tmp")) == 0);
    CHECK(symlink(in(theirs, "step-000002"), step_dir(4)) == 0);  // the one that is replaced
    begin(&w, 7), checkpoint_abort(&w);
    save(4, 1);
    CHECK(!is_there(1) && !is_there(3) && is_whole(4));
    strcpy(run_dir, theirs);
    CHECK(is_whole(1) && is_whole(2));
}

CLAIM(the_newest_checkpoint_is_the_one_that_was_written_last) {
    fresh("keep_old");
    for (int i = 0; i < 4; i++) save((int[]){1, 100, 200, 50}[i], 0);
    CHECK(latest_step() == 50);
    CHECK(shell("cp -r %s %s.copy && touch -d 2001-01-01 %s.copy/step-000050/DONE", run_dir, run_dir, run_dir) == 0);
    strcat(run_dir, ".copy");
    CHECK(latest_step() == 50);
    save(60, 2);
    CHECK(latest_step() == 60 && is_there(50) && !is_there(1) && !is_there(100) && !is_there(200));
}

CLAIM(temporary_directories_of_others_stay) {
    static const char* const others[] = {"step-2024-notes.tmp", "step-000007.tmp", "step-000008.old.tmp", "step-.tmp"};
    CheckpointWriter w;
    fresh("strangers");
    for (int i = 0; i < COUNT(others); i++) {
        CHECK(disk_make_dirs(in(run_dir, others[i]), err) == 0);
        write_file(in(in(run_dir, others[i]), "notes.txt"), "mine", 4);
    }
    begin(&w, 5), forget(&w);  // never committed
    save(6, 1);
    CHECK(!exists(w.dir));
    CHECK(checkpoint_begin(&w, run_dir, 7, err) == -1 && strstr(err, "step-000007.tmp"));
    for (int i = 0; i < COUNT(others); i++) CHECK(exists(in(in(run_dir, others[i]), "notes.txt")));
}

// ---- damage

CLAIM(whatever_is_damaged_is_found_by_name) {
    fresh("damaged");
    save(1, 0);
    char path[CHECKPOINT_PATH + 64], bytes[] = "not really a model";
    strcpy(path, in(step_dir(1), "model.safetensors"));
    for (size_t n = 0; n < 20; n++) {
        write_file(path, "not really a model!", n);
        CHECK(n == 18 ? is_whole(1) : is_bad(1, "model.safetensors: expected 18 bytes"));
    }
    for (int bit = 0; bit < 18 * 8; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        write_file(path, bytes, 18);
        CHECK(is_bad(1, "model.safetensors: expected content"));
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    CHECK(unlink(path) == 0 && is_bad(1, "model.safetensors"));
    CHECK(mkdir(path, 0777) == 0 && is_bad(1, "model.safetensors") && rmdir(path) == 0);
    write_file(path, bytes, 18);
    write_file(in(step_dir(1), "extra"), "x", 1);  // not listed: none of our business
    CHECK(is_whole(1));
}

static int read_marker(const void* bytes, size_t n) {
    write_file(in(step_dir(1), "DONE"), bytes, n);
    return checkpoint_verify(step_dir(1), err);
}

CLAIM(a_damaged_marker_is_refused) {
    static const BadText bad[] = {
        {"", "DONE"},
        {"{}", "DONE"},
        {"[]", "DONE"},
        {"7", "DONE"},
        {"{'step': 1}", "DONE"},
        {"{'step': 1, 'files': {}}", "DONE"},
        {"{'files': []}", "DONE"},
        {"{'step': 1, 'files': [7]}", "DONE"},
        {"{'step': 1, 'files': [{'name': 'config.json', 'bytes': 8}]}", "DONE"},
        {"{'step': 1, 'files': [{'name': 'config.json', 'bytes': -8, 'hash': '0000000000000000'}]}", "DONE"},
        {"{'step': 1, 'files': [{'name': 'config.json', 'bytes': 8, 'hash': '00'}]}", "DONE"},
        {"{'step': 1, 'files': [{'name': '../step-000001/config.json', 'bytes': 8, 'hash': '0000000000000000'}]}",
         "DONE"},
        {"{'step': 1, 'files': [{'name': '/etc/passwd', 'bytes': 8, 'hash': '0000000000000000'}]}", "DONE"},
    };
    size_t n = 0;
    fresh("damaged_marker");
    save(1, 0);
    char* text = checkpoint_read_file(step_dir(1), "DONE", &n, err);
    CHECK_BAD_TEXTS(read_marker, err, bad);
    check_prefixes(read_marker, text, n, n - 1);  // the last byte is a line break
    free(text);
    CHECK(unlink(in(step_dir(1), "DONE")) == 0 && is_bad(1, "DONE") && is_bad(2, "000002"));
}

CLAIM(large_files_are_hashed_whole) {
    enum { N = (2 << 20) + 777 };
    static char bytes[N];
    CheckpointWriter w;
    for (size_t i = 0; i < N; i++) bytes[i] = (char)hash64(i / 8);
    fresh("large");
    begin(&w, 1);
    CHECK(checkpoint_write_file(&w, "large", bytes, N, err) == 0);
    CHECK(checkpoint_commit(&w, 0, err) == 0 && is_whole(1));
    for (size_t i = 0; i < N; i += 262139) {  // a prime near N / 8: every piece, off its borders
        bytes[i] ^= 1;
        write_file(in(w.final, "large"), bytes, N);
        CHECK(is_bad(1, "/large: expected content"));
        bytes[i] ^= 1;
    }
}

// ---- what the system refuses

CLAIM(a_run_directory_that_cannot_be_is_an_error) {
    CheckpointWriter w;
    char file[600], path[CHECKPOINT_PATH], longest[CHECKPOINT_PATH + 100];
    int64_t step;
    fresh("a_file");
    snprintf(file, sizeof file, "%s", run_dir);
    write_file(file, "x", 1);
    CHECK(checkpoint_begin(&w, file, 1, err) == -1 && strstr(err, file));
    CHECK(checkpoint_begin(&w, in(file, "below"), 1, err) == -1 && strstr(err, file));
    CHECK(checkpoint_latest(file, path, &step, err) == -1 && strstr(err, file));
    CHECK(checkpoint_begin(&w, "", 1, err) == -1);
    CHECK(checkpoint_begin(&w, work, -1, err) == -1 && strstr(err, "step"));
    CHECK(checkpoint_begin(&w, "/proc/cannot/be", 1, err) == -1 && strstr(err, "/proc/cannot"));
    memset(longest, 'x', sizeof longest);
    for (size_t n = CHECKPOINT_PATH - 20; n < sizeof longest; n++) {
        longest[n] = 0;
        CHECK(checkpoint_begin(&w, longest, 1, err) == -1);
        checkpoint_abort(&w);  // harmless after a failure
        longest[n] = 'x';
    }
    for (int i = 0; i < 200; i++) longest[i] = i % 2 ? '/' : 'y';  // names short enough, the path too long
    longest[sizeof longest - 1] = 0;
    CHECK(checkpoint_begin(&w, longest, 1, err) == -1);
}

static int is_locked(void) {
    CheckpointWriter w;
    return checkpoint_begin(&w, run_dir, 1, err) == -1 && strstr(err, "locked");
}

CLAIM(a_directory_without_permission_is_an_error) {
    fresh("locked");
    CHECK(mkdir(run_dir, 0555) == 0);
    pid_t child = fork();
    if (child == 0) _exit((geteuid() || setuid(65534) == 0) && is_locked() ? 0 : 1);  // root may write anywhere
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(chmod(run_dir, 0755) == 0);
}

CLAIM(reading_a_file_that_is_none_is_an_error) {
    size_t n;
    fresh("reading");
    CHECK(mkdir(run_dir, 0777) == 0);
    CHECK(!checkpoint_read_file(run_dir, "missing", &n, err) && strstr(err, "missing"));
    CHECK(!checkpoint_read_file(work, "reading", &n, err) && strstr(err, "reading"));
    write_file(in(run_dir, "empty"), "", 0);
    char* text = checkpoint_read_file(run_dir, "empty", &n, err);
    CHECK(text && n == 0 && text[0] == 0);
    free(text);
    write_file(in(run_dir, "huge"), "", 0);
    CHECK(truncate(in(run_dir, "huge"), (off_t)1 << 40) == 0);  // sparse: takes no room
    CHECK(!checkpoint_read_file(run_dir, "huge", &n, err) && strstr(err, "huge"));
}

int main(void) { return temporary_main(); }
