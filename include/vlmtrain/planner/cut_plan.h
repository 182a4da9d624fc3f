#include "vlmtrain/planner/split_plan.h"
