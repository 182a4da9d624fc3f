#include "vlmtrain/vgpu/interface.h"
