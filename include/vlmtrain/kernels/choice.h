#include "vlmtrain/kernels/kernel_backend.h"
