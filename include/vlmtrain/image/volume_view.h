#include "vlmtrain/image/volume_slices.h"
