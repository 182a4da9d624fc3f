#include "vlmtrain/planner/spawned_child.h"
