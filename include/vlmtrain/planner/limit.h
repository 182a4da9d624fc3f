#include "vlmtrain/planner/target_gpu.h"
