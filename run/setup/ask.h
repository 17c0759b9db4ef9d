// ask.h - train asks build/simulate, the program that searches, through a pipe.
//
// The question is a command: the words of this run, followed by what only the run knows: the number of ranks, their
// memory, and the machine as a file. A person who types the command gets the same answer.
#pragma once
#include "run/run.h"

typedef struct SearchQuestion {
    const char* layout;  // --layout: auto, hydraulis, or the lines of one, whose time is asked for
    int capacity;        // tokens of a row of that one; 0: the search chooses
    Comm* ranks;         // who would run it; they need not be open
    int slow_rank;       // computes at `pace` if that is above 0
    double pace;
    const char* without;  // ", --NAME, --NAME,": words of the run that are no part of the question
    int tells;            // 1: the command and the lines of the search go to standard output
} SearchQuestion;

typedef struct SearchAnswer {
    double ms;               // of a step
    int capacity;            // tokens of a row
    char* layout;            // its lines with ; between them; NULL: its time was asked for
    const char* strategies;  // NULL: all ranks run the layout
    char* line;              // holds these words; the caller frees it
} SearchAnswer;

// --explain: the plan in run->batch beside what other planners do, on the terminal and as a page; or what stages hold.
// All ranks call it. NULL where this program is the trainer: there run_hand_over goes on as the other one.
extern void (*run_explain)(Run* run);
void run_hand_over(const Run* run);

// Asks, and returns 0, or -1 with the words of the search, or of its failure.
int run_ask_search(SearchAnswer* answer, const SearchQuestion* question, const Run* run, Err err);
