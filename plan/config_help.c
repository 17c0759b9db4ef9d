// config_help.c - the option table for people: --help, a man page, what a shell completes.
#include "plan/config_table.h"

enum { HELP_COLUMN = 24, HELP_WIDTH = 80 };

// Prints a word behind column `at`, or on a new line that begins at HELP_COLUMN; returns the column behind it.
static int print_word(FILE* out, int at, const char* word, int n) {
    if (at > HELP_COLUMN && at + 1 + n > HELP_WIDTH) fprintf(out, "\n%*s", HELP_COLUMN, ""), at = HELP_COLUMN;
    return at + fprintf(out, "%s%.*s", at > HELP_COLUMN ? " " : "", n, word);
}

static void print_left(FILE* out, const char* left) {
    if (strlen(left) < HELP_COLUMN) fprintf(out, "%-*s", HELP_COLUMN, left);
    else fprintf(out, "%s\n%*s", left, HELP_COLUMN, "");
}

static void print_option(FILE* out, const Option* o, int brief) {
    char left[128], range[64] = "", standard[128];
    const char* value = o->choices ? o->choices : o->type == FLAG ? "" : o->type == REAL ? "X" : "N";
    enum { MANY = 60 };  // choices that do not fit a line are in the help's words
    if (o->type == CHOICE && (brief || strlen(value) > MANY)) value = "NAME";
    if (o->group == KEY) snprintf(left, sizeof left, "    %s=%s", key_of(o), value);
    else snprintf(left, sizeof left, "  %s %s", o->name, value);
    print_left(out, left);
    int at = HELP_COLUMN, n;
    for (const char* text = brief ? o->brief : o->help; *text; text += n + (text[n] == ' '))
        at = print_word(out, at, text, n = (int)strcspn(text, " "));
    if (!brief && is_number(o)) snprintf(range, sizeof range, ", %.15g to %.15g", o->least, o->greatest);
    snprintf(standard, sizeof standard, "[%s%s]", o->standard ? o->standard : "", range);
    if (o->standard && !(brief && !strcmp(o->standard, "0"))) print_word(out, at, standard, (int)strlen(standard));
    fputc('\n', out);
}

static void print_group(FILE* out, Group group) {
    fprintf(out, "\n%s: %s\n\n", config_groups[group][0], config_groups[group][1]);
    for (int i = 0; i < n_config_options; i++)
        if (config_options[i].group == group || (config_options[i].group == KEY && group == SLOW))
            print_option(out, &config_options[i], 0);
}

static void print_first_options(FILE* out) {
    fprintf(out,
            "usage: train [options]\n\n"
            "Trains a GPT-2, Llama or Qwen on documents of any length. Without options: a\n"
            "small byte-level model on this machine's C headers, in two to four minutes on\n"
            "two cores.\n\n");
    for (int i = 0; i < n_config_options; i++)
        if (config_options[i].brief) print_option(out, &config_options[i], 1);
    fprintf(out, "\nAll options by group: --help all. One group:\n\n");
    for (int g = 0; g < N_GROUPS; g++) {
        char left[64];
        snprintf(left, sizeof left, "  --help %s", config_groups[g][0]);
        print_left(out, left);
        fprintf(out, "%s\n", config_groups[g][1]);
    }
    fprintf(out,
            "\nFirst run   ./train                 Use it      ./train --sample \"int main(\"\n"
            "Go on       ./train --resume        Own text    ./train --data my-texts/ a.jsonl\n"
            "Ranks       mpirun -n 4 ./train     Clusters    scripts/many_nodes.sh, slurm.sh\n");
}

// ---- for make install: a man page, and what a shell completes

static void print_man_option(FILE* out, const Option* o) {
    const char* value = o->type == FLAG ? "" : o->choices ? o->choices : o->type == REAL ? "X" : "N";
    fprintf(out, ".TP\n.B ");
    for (const char* c = o->name; *c; c++) fprintf(out, *c == '-' ? "\\-" : "%c", *c);
    fprintf(out, " \\fI%s\\fR\n", o->type == CHOICE && strlen(value) > 60 ? "NAME" : value);
    for (const char* c = o->help; *c; c++) fprintf(out, *c == '\\' ? "\\e" : *c == '-' ? "\\-" : "%c", *c);
    if (o->standard) fprintf(out, " [%s]", o->standard);
    fputc('\n', out);
}

static void print_man(FILE* out) {
    fputs(
        ".TH RAGGED 1\n.SH NAME\nragged \\- train a GPT-2, Llama or Qwen on documents of any length\n.SH SYNOPSIS\n"
        ".B ragged\n[options]\n.SH DESCRIPTION\nWithout options: a small byte-level model on this machine's C "
        "headers.\n",
        out);
    for (int g = 0; g < N_GROUPS; g++) {
        fprintf(out, ".SH %s\n%s\n", config_groups[g][0], config_groups[g][1]);
        for (int i = 0; i < n_config_options; i++)
            if (config_options[i].group == (Group)g) print_man_option(out, &config_options[i]);
    }
}

// Of a CHOICE its values are completed, of all else files.
static void print_values(FILE* out, const Option* o) {
    for (const char* c = o->choices; *c; c++) fputc(*c == '|' ? ' ' : *c, out);
}

static void print_bash(FILE* out) {
    fputs("_ragged() {\n    local last=${COMP_WORDS[COMP_CWORD-1]} word=${COMP_WORDS[COMP_CWORD]}\n    case $last in\n",
          out);
    for (int i = 0; i < n_config_options; i++) {
        const Option* o = &config_options[i];
        if (o->type != CHOICE || o->group == KEY) continue;
        fprintf(out, "        %s) COMPREPLY=($(compgen -W \"", o->name);
        print_values(out, o);
        fputs("\" -- \"$word\")); return ;;\n", out);
    }
    fputs("    esac\n    [[ $word == -* ]] && COMPREPLY=($(compgen -W \"", out);
    for (int i = 0; i < n_config_options; i++)
        if (config_options[i].group != KEY) fprintf(out, "%s ", config_options[i].name);
    fputs("\" -- \"$word\"))\n}\ncomplete -o default -F _ragged ragged train ./train\n", out);
}

// The help up to its first semicolon, as text inside quotes (and brackets of zsh).
static void print_what(FILE* out, const Option* o) {
    for (const char* c = o->brief ? o->brief : o->help; *c && *c != ';'; c++)
        if (*c == '\'') fputs("'\\''", out);
        else if (!strchr("[]\\", *c)) fputc(*c, out);
}

static void print_zsh(FILE* out) {
    fputs("#compdef ragged train\n_arguments -S", out);
    for (int i = 0; i < n_config_options; i++) {
        const Option* o = &config_options[i];
        if (o->group == KEY) continue;
        fprintf(out, " \\\n    '%s%s[", o->type == PATHS ? "*" : "", o->name);
        print_what(out, o);
        fputc(']', out);
        if (o->type == CHOICE) fputs(":value:(", out), print_values(out, o), fputc(')', out);
        else if (o->type == TOPIC) fputs("::topic:", out);
        else if (o->type != FLAG) fputs(is_number(o) ? ":number:" : ":file:_files", out);
        fputc('\'', out);
    }
    fputs(" \\\n    '*:file:_files'\n", out);
}

static void print_fish(FILE* out) {
    for (int i = 0; i < n_config_options; i++) {
        const Option* o = &config_options[i];
        if (o->group == KEY) continue;
        fprintf(out, "complete -c ragged -l %s -d '", o->name + 2);
        print_what(out, o);
        fputc('\'', out);
        if (o->type == CHOICE) fputs(" -x -a '", out), print_values(out, o), fputc('\'', out);
        else if (is_number(o)) fputs(" -x", out);
        else if (o->type != FLAG && o->type != TOPIC) fputs(" -r -F", out);
        fputc('\n', out);
    }
}

void config_help(FILE* out, const char* topic) {
    if (!topic[0]) print_first_options(out);
    if (!strcmp(topic, "man")) print_man(out);
    if (!strcmp(topic, "bash")) print_bash(out);
    if (!strcmp(topic, "zsh")) print_zsh(out);
    if (!strcmp(topic, "fish")) print_fish(out);
    for (int g = 0; g < N_GROUPS; g++)
        if (!strcmp(topic, "all") || !strcmp(topic, config_groups[g][0])) print_group(out, (Group)g);
}
