#include "vlmtrain/data/sample/sample_shape.h"
