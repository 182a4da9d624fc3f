#include "vlmtrain/evaluation/mask_score.h"
