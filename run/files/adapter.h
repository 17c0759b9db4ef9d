// adapter.h - adapters in files: the frozen base beside them, what a run starts from, and both as one model.
#pragma once
#include "run/files/saving.h"

int adapter_is_there(const Run* run);  // 1: start_from holds an adapter; 0: a whole model, or nothing
// Finds the base of the adapters that start_from holds, or that --lora asks for: Books.base, empty without adapters. It
// ends the program if that is no model. Returns the directory that has config.json.
const char* adapter_find_base(Run* run);
// Returns the adapters beside a base; the base itself where there are none.
Shape adapter_shape(const Run* run, Shape base);
DType adapter_merge_dtype(const Run* run);  // of the base's files: what --merge writes, unless --dtype says otherwise
void adapter_check(const Run* run);  // ends the program where an option and adapters do not go together
// Reads the frozen weights. 0, or -1 with a message.
int adapter_read_base(Run* run, Err err);
// Writes the base with its adapters added as one model into --merge's directory. Collective.
void adapter_merge(Run* run);
