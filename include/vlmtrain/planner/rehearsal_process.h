#include "vlmtrain/planner/dry_run_process.h"
