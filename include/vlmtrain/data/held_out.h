#include "vlmtrain/data/index/hold_out.h"
