#include "vlmtrain/planner/look_ahead.h"
