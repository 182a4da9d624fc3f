#include "vlmtrain/memory/memory_tag.h"
