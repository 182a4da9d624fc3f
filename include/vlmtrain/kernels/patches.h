#include "vlmtrain/kernels/patchify.h"
