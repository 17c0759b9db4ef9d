// talk.h - --chat: a conversation with a model in the terminal.
#pragma once
#include "run/run.h"

// Reads what a person says, a line at a time, and answers by the model's chat template, until the input ends or says
// /quit. /again answers the last line anew. Ctrl-C ends an answer. All ranks call it; rank 0 has the terminal.
void run_talk(Run* run);
