#include "vlmtrain/planner/savings_table.h"
