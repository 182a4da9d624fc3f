#include "vlmtrain/memory/allocation_trace.h"
