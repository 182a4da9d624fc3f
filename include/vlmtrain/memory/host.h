#include "vlmtrain/memory/host_memory.h"
