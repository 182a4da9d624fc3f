#include "vlmtrain/data/sample/micro_batch.h"
