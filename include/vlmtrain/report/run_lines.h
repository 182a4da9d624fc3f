#include "vlmtrain/report/json_lines.h"
