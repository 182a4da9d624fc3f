#include "vlmtrain/models/synthetic_sample.h"
