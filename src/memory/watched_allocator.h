#include "vlmtrain/memory/allocation_tracking.h"
