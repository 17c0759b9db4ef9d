// test_checkpoint_damage.c - claims about data/checkpoint.c when things go wrong: files that rot, disks that are full,
// directories that cannot be, and a process that is killed at any moment.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "test/checkpoint_dirs.h"

// ---- damage

CLAIM(whatever_is_damaged_is_found_by_name) {
    char dir[CHECKPOINT_PATH];
    fresh("damaged");
    save(1, 0);
    CHECK(latest(dir) == 1);
    char path[CHECKPOINT_PATH + 64];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    for (size_t n = 0; n < 20; n++) {
        write_file(path, "not really a model!", n);
        CHECK(checkpoint_verify(dir, err) == (n == 18 ? 0 : -1));
        CHECK(n == 18 || strstr(err, "model.safetensors: expected 18 bytes"));
        for (int bit = 0; n == 18 && bit < 18 * 8; bit++) {
            char bytes[] = "not really a model";
            bytes[bit / 8] ^= (char)(1 << bit % 8);
            write_file(path, bytes, 18);
            CHECK(checkpoint_verify(dir, err) == -1 && strstr(err, "model.safetensors: expected content"));
        }
    }
    unlink(path);
    CHECK(checkpoint_verify(dir, err) == -1 && strstr(err, "model.safetensors"));
    CHECK(mkdir(path, 0777) == 0 && checkpoint_verify(dir, err) == -1 && strstr(err, "model.safetensors"));
    rmdir(path);
    write_file(path, "not really a model", 18);
    write_file(in(dir, "extra"), "x", 1);  // not listed: none of our business
    CHECK(checkpoint_verify(dir, err) == 0);
}

CLAIM(a_damaged_marker_is_refused) {
    static const char* const bad[] = {
        // with ' for "
        "",
        "{}",
        "[]",
        "7",
        "{'step': 1}",
        "{'step': 1, 'files': {}}",
        "{'files': []}",
        "{'step': 1, 'files': [7]}",
        "{'step': 1, 'files': [{'name': 'config.json', 'bytes': 8}]}",
        "{'step': 1, 'files': [{'name': 'config.json', 'bytes': -8, 'hash': '0000000000000000'}]}",
        "{'step': 1, 'files': [{'name': 'config.json', 'bytes': 8, 'hash': '00'}]}",
        "{'step': 1, 'files': [{'name': '../step-000001/config.json', 'bytes': 8, 'hash': '0000000000000000'}]}",
        "{'step': 1, 'files': [{'name': '/etc/passwd', 'bytes': 8, 'hash': '0000000000000000'}]}",
    };
    char dir[CHECKPOINT_PATH], done[CHECKPOINT_PATH + 8];
    size_t n = 0;
    fresh("damaged_marker");
    save(1, 0);
    CHECK(latest(dir) == 1);
    snprintf(done, sizeof done, "%s/DONE", dir);
    char* text = checkpoint_read_file(dir, "DONE", &n, err);
    for (int i = 0; i < COUNT(bad); i++) {
        char quoted[256];
        for (size_t k = 0; k <= strlen(bad[i]); k++) quoted[k] = bad[i][k] == '\'' ? '"' : bad[i][k];
        write_file(done, quoted, strlen(quoted));
        CHECK(checkpoint_verify(dir, err) == -1 && strstr(err, "DONE"));
    }
    for (size_t k = 0; k < n - 1; k++) {  // the last byte is a line break
        write_file(done, text, k);
        CHECK(checkpoint_verify(dir, err) == -1 && strstr(err, "DONE"));
    }
    write_file(done, text, n);
    CHECK(checkpoint_verify(dir, err) == 0);
    free(text);
    unlink(done);
    CHECK(checkpoint_verify(dir, err) == -1 && strstr(err, "DONE"));
    CHECK(checkpoint_verify(in(run_dir, "missing"), err) == -1 && strstr(err, "missing"));
}

CLAIM(large_files_are_hashed_whole) {
    enum { N = (2 << 20) + 777 };
    static char bytes[N];
    CheckpointWriter w;
    for (size_t i = 0; i < N; i++) bytes[i] = (char)hash64(i / 8);
    fresh("large");
    begin(&w, 1);
    CHECK(checkpoint_write_file(&w, "large", bytes, N, err) == 0);
    CHECK(checkpoint_commit(&w, 0, err) == 0 && checkpoint_verify(w.final, err) == 0);
    for (size_t i = 0; i < N; i += 262139) {  // a prime near N / 8: every piece, off its borders
        bytes[i] ^= 1;
        write_file(in(w.final, "large"), bytes, N);
        CHECK(checkpoint_verify(w.final, err) == -1 && strstr(err, "/large: expected content"));
        bytes[i] ^= 1;
    }
}

CLAIM(a_foreign_model_is_told_from_a_broken_checkpoint) {
    static const struct {
        const char* name;
        int is_foreign;
    } files[] = {{"model.safetensors", 0}, {"config.json", 1}, {"state.json", 0}};
    fresh("foreign");
    CHECK(!checkpoint_is_foreign(run_dir) && mkdir(run_dir, 0777) == 0 && !checkpoint_is_foreign(run_dir));
    for (int i = 0; i < COUNT(files); i++) {
        write_file(in(run_dir, files[i].name), "{}", 2);
        CHECK(checkpoint_is_foreign(run_dir) == files[i].is_foreign);
    }
    unlink(in(run_dir, "state.json"));
    write_file(in(run_dir, "DONE"), "{}", 2);
    CHECK(!checkpoint_is_foreign(run_dir));
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

CLAIM(a_full_disk_leaves_older_checkpoints_as_they_were) {
    static char many[100000];
    CheckpointWriter w;
    struct rlimit before, small;
    fresh("full");
    save(1, 0);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    signal(SIGXFSZ, SIG_IGN);
    begin(&w, 2);
    small = before;
    small.rlim_cur = 50000;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(checkpoint_write_file(&w, "big", many, sizeof many, err) == -1 && strstr(err, "big"));
    CHECK(!exists(in(w.dir, "big")));
    small.rlim_cur = 10;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(checkpoint_commit(&w, 1, err) == -1 && strstr(err, "DONE"));
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    signal(SIGXFSZ, SIG_DFL);
    CHECK(!exists(w.dir) && !exists(w.final) && latest_step() == 1);
    CHECK(checkpoint_verify(in(run_dir, "step-000001"), err) == 0);
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

// ---- kill -9

// Saves step after step until it is killed.
static void save_for_ever(int64_t step, uint64_t seed) {
    static char bytes[1 << 17];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)hash64(i);
    for (;; step++, seed = hash64(seed)) {
        CheckpointWriter w;
        if (checkpoint_begin(&w, run_dir, step, err)) _exit(1);
        for (int i = 0; i < 2 + (int)(seed >> 7 & 1); i++) {
            char name[32];
            uint64_t r = hash64(seed + (uint64_t)i);
            snprintf(name, sizeof name, "file-%d", i);
            if (checkpoint_write_file(&w, name, bytes + (r >> 32 & 63), r % (sizeof bytes - 64), err)) _exit(1);
        }
        if (checkpoint_commit(&w, 2, err)) _exit(1);
    }
}

CLAIM(a_save_killed_at_any_moment_leaves_a_whole_checkpoint) {
    int64_t last = 3;
    int interrupted = 0;
    fresh("killed");
    double started = now_seconds();
    for (int64_t step = 1; step <= last; step++) save(step, 2);
    double one_save = (now_seconds() - started) / 3;
    for (uint64_t round = 0; round < 30 && now_seconds() - started < 5; round++) {
        char path[CHECKPOINT_PATH];
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) save_for_ever(last + 1, round);
        usleep((useconds_t)(1e6 * MIN(0.9, 6 * one_save) * random_uniform(5, round)));
        int status = 0;
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));  // it did not end by an error of its own
        int64_t step = latest(path);
        CHECK(step >= last);
        CHECK(checkpoint_verify(path, err) == 0);
        char next[32];
        snprintf(next, sizeof next, "step-%06lld.tmp", (long long)step + 1);
        interrupted += exists(in(run_dir, next));
        last = step;
    }
    CHECK(last > 3);          // checkpoints did get saved
    CHECK(interrupted >= 1);  // and at least one kill came in the middle of a save
    save(last + 1, 1);        // the run goes on, and cleans up
    CHECK(latest_step() == last + 1 && is_there(last + 1) && !is_there(last));
    for (int64_t step = 0; step <= last; step++) CHECK(!is_there(step));
}

int main(void) {
    temporary_begin();
    run_claims();
    return temporary_end();
}
