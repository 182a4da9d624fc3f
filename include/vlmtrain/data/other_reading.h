#include "vlmtrain/data/index/bad_samples.h"
