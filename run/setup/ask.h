// ask.h - train asks build/simulate, the program that searches, through a pipe.
//
// The question is a command: the words of this run, followed by what only the run knows: the number of ranks, their
// memory, and the machine as a file. A person who types the command gets the same answer.
#pragma once
#include "run/run.h"

typedef struct SearchQuestion {
    const char* layout;  // --layout: auto, hydraulis, or the lines of one, whose time is asked for
    int capacity;        // tokens of a row of that one; 0: the search chooses
    int ranks, node_size;
    const char *machine, *from;  // --machine, and its origin in words; NULL: the one that the run's own words name
    const char* without;         // ", --NAME, --NAME, ": words of the run that are no part of the question
    int tells;                   // 1: the command and the lines of the search go to standard output
} SearchQuestion;

typedef struct SearchAnswer {
    double ms;               // of a step
    int capacity;            // tokens of a row
    char* layout;            // its lines with ; between them; NULL: its time was asked for
    const char* strategies;  // NULL: all ranks run the layout
    char* line;              // holds these words; the caller frees it
} SearchAnswer;

// Asks, and returns 0, or -1 with the words of the search, or of its failure.
int run_ask_search(SearchAnswer* answer, const SearchQuestion* question, const Run* run, Err err);
// Writes the machine file of a question into the user's cache: measured or estimated, as `from` says. slow_rank
// computes at `pace` if that is above 0. path is empty if --machine names the machine. 0, or -1 with a message.
int run_machine_of_questions(char path[DISK_PATH], char from[ERR_BYTES], Run* run, int slow_rank, double pace, Err err);
