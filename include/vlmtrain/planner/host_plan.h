#include "vlmtrain/planner/cpu_plan.h"
