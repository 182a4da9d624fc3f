#include "vlmtrain/planner/plan.h"
