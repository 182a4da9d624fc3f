#include "vlmtrain/models/checkpoint_info.h"
