// ask.c - the search for a layout is another program's; see ask.h.
#define _GNU_SOURCE  // popen, getline
#include "run/setup/ask.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plan/base/terminal.h"
#include "plan/base/user_cache.h"
#include "run/setup/setup.h"

// ---- the program

// Finds the program beside this one: in a checkout, in a folder of a build, in that of a test, installed.
static int find_program(char path[DISK_PATH], Err err) {
    static const char* const places[] = {"build/simulate", "dev/simulate", "../dev/simulate", "simulate",
                                         "ragged-simulate"};
    char own[DISK_PATH] = "./train";
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n > 0) own[n] = 0;
    char* name = strrchr(own, '/');
    if (name) *name = 0;
    for (int i = 0; i < COUNT(places); i++)
        if (disk_join(path, own, places[i], err) == 0 && access(path, X_OK) == 0) return 0;
    return fail(err, "build/simulate, the program that searches and explains, is not beside %s; try: make simulate",
                own);
}

void (*run_explain)(Run* run);

void run_hand_over(const Run* run) {
    char program[DISK_PATH], err[ERR_BYTES];
    size_t n = (size_t)run->argc;
    if (run_explain || run->cluster->searches) return;
    char** words = (char**)calloc(n + 2, sizeof *words);
    if (!words) die("--explain: no memory for %zu words", n);
    if (find_program(program, err)) die("--explain: %s", err);
    words[0] = run->argv[0], words[1] = (char*)"explain";
    memcpy(words + 2, run->argv + 1, (n - 1) * sizeof *words);
    fflush(stdout);
    execv(program, words);
    die("--explain: cannot start %s: %s", program, strerror(errno));
}

// ---- the machine

// Gives a machine of alike ranks a kind for this one.
static void slow_down(Machine* m, int rank, double pace) {
    if (m->n_kinds) return;
    m->n_kinds = 2;
    m->kind_first[0] = rank, m->kind_speed[0] = pace, m->kind_gib[0] = 0;
    m->kind_first[1] = rank + 1, m->kind_speed[1] = 1, m->kind_gib[1] = 0;
}

// Writes the machine of a question into the user's cache: measured or estimated, as `from` says. path is empty if the
// run's own words name it. 0, or -1 with a message.
static int write_machine(char path[DISK_PATH], char from[ERR_BYTES], const SearchQuestion* q, const Run* run, Err err) {
    static Machine machine;
    char name[64], text[MACHINE_TEXT];
    path[0] = from[0] = 0;
    if (run->config.machine && q->pace <= 0) return 0;
    if (run_machine_of_layouts(run, q->ranks, &machine, from, err)) return -1;
    run_fit_machine(run, &machine, -1);
    if (q->pace > 0) slow_down(&machine, q->slow_rank, q->pace);
    size_t n = (size_t)snprintf(text, sizeof text, "# %s\n", from);
    n += machine_print(&machine, text + n, sizeof text - n);
    if (n >= sizeof text) return fail(err, "a machine file of %zu bytes", n);
    snprintf(name, sizeof name, "machine-%016" PRIx64 ".txt", hash_bytes(text, n, 0));
    return user_cache_path(path, name, err) || user_cache_save(name, text, n, 1, err) ? -1 : 0;
}

// ---- the command

static void add_word(FILE* to, const char* word) {
    size_t room = 4 * strlen(word) + 3;
    char* quoted = (char*)malloc(room);
    if (quoted) fprintf(to, " %s", text_quoted(word, quoted, room));
    free(quoted);
}

static void add_number(FILE* to, const char* option, double value) { fprintf(to, " %s %.0f", option, value); }

// Adds the words of the run, but for options that the question sets anew, or that `without` names.
static void add_own(FILE* to, const Run* run, const char* without, int names_machine) {
    static const char anew[] = ", --ranks, --threads, --memory, --layout,";
    char name[72];
    for (int i = 1, is_left_out = 0; i < run->argc; i++) {
        const char* word = run->argv[i];
        snprintf(name, sizeof name, ", %.*s,", (int)MIN(strcspn(word, "="), (size_t)64), word);
        if (is_option_name(word))
            is_left_out = strstr(anew, name) || (without && strstr(without, name)) ||
                          (names_machine && !strcmp(name, ", --machine,"));
        if (!is_left_out) add_word(to, word);
    }
}

// Returns the command, malloc'ed; NULL without memory. Ranks that share cores gain nothing from overlap.
static char* command_of(const char* program, const char* machine, const SearchQuestion* q, const Run* run) {
    char *text = NULL, node[64];
    size_t n = 0;
    const Cluster* x = run->cluster;
    FILE* to = open_memstream(&text, &n);
    if (!to) return NULL;
    snprintf(node, sizeof node, "node-size=%d", run_node_size(run, q->ranks, 1, 1));
    fputs(program, to);
    fputs(" layout", to);
    add_own(to, run, q->without, machine[0] != 0);
    add_number(to, "--ranks", q->ranks->size);
    add_word(to, "--plan"), add_word(to, node);
    if (run->config.threads) add_number(to, "--threads", run->config.threads);
    if (x->available.bytes) add_number(to, "--memory", (double)x->available.bytes);
    if (q->capacity) add_number(to, "--capacity", q->capacity);
    if (x->oversubscribed) fputs(" --overlap no", to);
    if (machine[0]) add_word(to, "--machine"), add_word(to, machine);
    add_word(to, "--layout"), add_word(to, q->layout);
    return fclose(to) ? NULL : text;
}

// ---- the answer

// Returns the next word of a command, ended by a 0, and moves *at past it; NULL: there is none.
static char* next_word(char** at) {
    char *word = *at + strspn(*at, " "), end = ' ';
    if (!*word) return NULL;
    if (*word == '\'') end = *word++;
    *at = word + strcspn(word, end == '\'' ? "'" : " ");
    if (**at) *(*at)++ = 0;
    return word;
}

// Takes the answer "... MS ms a step; use it: --NAME VALUE ...". Returns 1 if the line is one.
static int take_answer(SearchAnswer* a, char* line) {
    static const char asks[] = " ms a step; use it: ";
    char *found = strstr(line, asks), *at = found ? found + sizeof asks - 1 : NULL, *word;
    if (!found) return 0;
    *a = (SearchAnswer){.ms = strtod(line, NULL), .line = line};
    while ((word = next_word(&at))) {
        char* value = next_word(&at);
        if (!value) return 0;
        if (!strcmp(word, "--capacity")) a->capacity = atoi(value);
        if (!strcmp(word, "--layout")) a->layout = value;
        if (!strcmp(word, "--strategies")) a->strategies = value;
    }
    return a->layout != NULL;
}

// Takes the lines of a search. Returns 1 if it has answered; err holds the words of its last line.
static int hear(SearchAnswer* a, FILE* from, int tells, Err err) {
    char* line = NULL;
    size_t room = 0;
    int answered = 0, told = 0;
    for (ssize_t n; !answered && (n = getline(&line, &room, from)) > 0;) {
        if (line[n - 1] == '\n') line[n - 1] = 0;
        // This run has said already what the search says while it opens its documents.
        told |= !strncmp(line, "layout  ", 8) || !strncmp(line, "predicted ", 10);
        int is_error = !strncmp(line, "simulate: ", 10);
        if (told && tells && !is_error) say(stdout, "%s", line);
        snprintf(err, ERR_BYTES, "%s", line + (is_error ? 10 : 0));
        if (sscanf(line, "predicted %lf ms a step", &a->ms) == 1) answered = 1;
        if (!answered && take_answer(a, line)) return 1;
    }
    free(line);
    return answered;
}

int run_ask_search(SearchAnswer* a, const SearchQuestion* q, const Run* run, Err err) {
    char program[DISK_PATH], machine[DISK_PATH], from_where[ERR_BYTES];
    *a = (SearchAnswer){0};
    if (write_machine(machine, from_where, q, run, err) || find_program(program, err)) return -1;
    char* command = command_of(program, machine, q, run);
    char* whole = command ? (char*)malloc(strlen(command) + 8) : NULL;
    if (!whole) return free(command), fail(err, "no memory for the command of the search");
    sprintf(whole, "%s 2>&1", command);
    if (q->tells) say(stdout, "search  %s", command);
    if (q->tells && machine[0]) say(stdout, "        times there are %s", from_where);
    fflush(stdout);
    FILE* from = popen(whole, "r");
    free(command), free(whole);
    if (!from) return fail(err, "cannot start %s: %s", program, strerror(errno));
    int answered = hear(a, from, q->tells, err), status = pclose(from);
    if (answered && status == 0) return 0;
    free(a->line), a->line = NULL;
    if (WIFSIGNALED(status)) return fail(err, "%s ended by signal %d", program, WTERMSIG(status));
    return answered || !err[0] ? fail(err, "%s ended with status %d", program, WEXITSTATUS(status)) : -1;
}
