#include "vlmtrain/data/index/sample_index.h"
