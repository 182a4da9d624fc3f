#include "vlmtrain/report/inspection_text.h"
