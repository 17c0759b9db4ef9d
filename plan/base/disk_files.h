#include "plan/base/disk.h"
