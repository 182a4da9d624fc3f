#include "vlmtrain/memory/libtorch_env.h"
