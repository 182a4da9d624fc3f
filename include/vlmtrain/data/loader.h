#include "vlmtrain/data/loader/loader.h"
