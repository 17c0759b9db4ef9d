#include "plan/base/terminal.h"
