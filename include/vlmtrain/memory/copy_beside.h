#include "vlmtrain/memory/device_copy.h"
