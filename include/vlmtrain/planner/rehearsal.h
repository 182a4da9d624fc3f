#include "vlmtrain/planner/dry_run.h"
