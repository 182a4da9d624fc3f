#include "vlmtrain/data/sample/statistics.h"
