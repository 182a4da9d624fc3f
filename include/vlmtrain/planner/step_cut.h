#include "vlmtrain/planner/memory_split.h"
