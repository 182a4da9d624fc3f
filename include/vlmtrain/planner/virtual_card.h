#include "vlmtrain/planner/virtual_gpu.h"
