#include "vlmtrain/report/plan_text.h"
