#include "vlmtrain/kernels/activation.h"
