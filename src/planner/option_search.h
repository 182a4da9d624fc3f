#include "planner/search/config_search.h"
