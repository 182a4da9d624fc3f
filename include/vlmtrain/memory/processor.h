#include "vlmtrain/memory/cpu_info.h"
