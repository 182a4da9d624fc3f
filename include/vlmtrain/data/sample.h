#include "vlmtrain/data/sample/sample.h"
