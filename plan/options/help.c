// help.c - what --help prints; see read.h.
#include <stdio.h>

#include "plan/options/read.h"
#include "plan/options/table.h"

enum { HELP_COLUMN = 24, HELP_WIDTH = 80 };

static void print_left(FILE* out, const char* left) {
    if (strlen(left) < HELP_COLUMN) fprintf(out, "%-*s", HELP_COLUMN, left);
    else fprintf(out, "%s\n%*s", left, HELP_COLUMN, "");
}

// Prints words behind column `at`, and on new lines that begin at HELP_COLUMN; returns the column behind them.
static int print_words(FILE* out, int at, const char* text, const char* ends) {
    for (int n; *text; text += n + (text[n] != 0)) {
        n = (int)strcspn(text, ends);
        if (at > HELP_COLUMN && at + 1 + n > HELP_WIDTH) fprintf(out, "\n%*s", HELP_COLUMN, ""), at = HELP_COLUMN;
        at += fprintf(out, "%s%.*s", at > HELP_COLUMN ? " " : "", n, text);
    }
    return at;
}

static void print_option(FILE* out, const Option* o, int brief) {
    enum { MANY = 50 };  // choices that do not fit a line stand behind the help
    const Field* f = &o->value;
    char left[128], standard[64];
    const char* value = f->choices ? f->choices : f->type == FLAG ? "" : f->type == REAL ? "X" : "N";
    int is_long = f->type == CHOICE && (brief || strlen(value) > MANY), is_number = f->least < f->most;
    snprintf(left, sizeof left, "%s%s%s%s", option_key(o) ? "      " : "  ",
             option_key(o) ? option_key(o) + 1 : f->name, option_key(o) ? "=" : " ", is_long ? "NAME" : value);
    print_left(out, left);
    int has_standard = o->standard && strcmp(o->standard, "0") != 0, at = print_words(out, HELP_COLUMN, o->help, " ");
    if (is_long && !brief) at = print_words(out, at, value, "|");
    if (brief || !is_number) snprintf(standard, sizeof standard, "[%s]", o->standard ? o->standard : "");
    else snprintf(standard, sizeof standard, "[%s, %.15g to %.15g]", o->standard, f->least, f->most);
    if (has_standard || (is_number && !brief)) print_words(out, at, standard, "");
    fputc('\n', out);
}

static void print_first(FILE* out) {
    fprintf(out,
            "usage: train [options]\n\n"
            "Trains a GPT-2, Llama or Qwen on documents of any length. Without options: a\n"
            "small byte-level model on this machine's C headers, in two to four minutes on\n"
            "two cores.\n\n");
    for (const Option* o = config_options; *o->value.name; o++)
        if (o->is & FIRST) print_option(out, o, 1);
    fprintf(out, "\nAll options by group: --help all. One group:\n\n");
    for (const Option* o = config_options; *o->value.name; o++) {
        char left[64];
        if (o->value.type != GROUP) continue;
        snprintf(left, sizeof left, "  --help %s", o->value.name);
        print_left(out, left);
        fprintf(out, "%s\n", o->help);
    }
    fprintf(out,
            "\nFirst run   ./train                 Use it      ./train --sample \"int main(\"\n"
            "Go on       ./train --resume        Own text    ./train --data my-texts/ a.jsonl\n"
            "Ranks       mpirun -n 4 ./train     Clusters    scripts/many_nodes.sh, slurm.sh\n");
}

void config_help(FILE* out, const char* topic) {
    int shown = 0;
    if (!*topic) print_first(out);
    for (const Option* o = config_options; *topic && *o->value.name; o++) {
        if (o->value.type == GROUP) shown = !strcmp(topic, "all") || !strcmp(topic, o->value.name);
        if (!shown) continue;
        if (o->value.type != GROUP) print_option(out, o, 0);
        else fprintf(out, "\n%s: %s\n\n", o->value.name, o->help);
    }
}
