#include "planner/dry_run/cost_recorder.h"
