// table.h - the table of mechanisms, which knows every room; nothing but tests includes this.
#pragma once
#include "run/run.h"

void run_close(Run* run);  // closes what was opened; sets the status of the program
