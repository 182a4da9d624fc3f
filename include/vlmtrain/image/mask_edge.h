#include "vlmtrain/image/mask.h"
