#include "vlmtrain/data/sample/notices.h"
