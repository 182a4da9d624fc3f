#include "vlmtrain/planner/workload.h"
