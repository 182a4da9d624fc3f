#include "planner/dry_run/protocol.h"
