#include "vlmtrain/data/index/tasks.h"
