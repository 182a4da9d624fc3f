#include "vlmtrain/models/base_weights.h"
