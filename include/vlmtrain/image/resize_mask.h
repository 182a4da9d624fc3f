#include "vlmtrain/image/resize.h"
