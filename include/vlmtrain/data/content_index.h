#include "vlmtrain/data/index/content_index.h"
