#include "plan/base/base.h"
