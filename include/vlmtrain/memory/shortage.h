#include "vlmtrain/memory/out_of_memory.h"
