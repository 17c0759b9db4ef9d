// adapter.h - adapters in files: the frozen base beside them, what a run starts from, and both as one model.
#pragma once
#include "run/files/saving.h"

// Finds the base of the adapters that start_from holds, or that --lora asks for: Books.base, empty where there are none.
// It ends the program if that is no model. Returns the directory that has config.json.
const char* adapter_find_base(Run* run);
// Makes the model that of the adapters, once config.json has said what the base is.
void adapter_settle(Run* run);
// Reads the frozen weights. 0, or -1 with a message.
int adapter_read_base(Run* run, Err err);
// Writes the base with its adapters added as one model into --merge's directory. Collective.
void adapter_merge(Run* run);
