#include "planner/search/plan_evaluator.h"
