#include "planner/dry_run.h"
