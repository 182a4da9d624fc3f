#include "vlmtrain/kernels/rope.h"
