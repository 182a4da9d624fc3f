#include "vlmtrain/memory/large_blocks.h"
