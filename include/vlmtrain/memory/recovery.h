#include "vlmtrain/memory/device.h"
