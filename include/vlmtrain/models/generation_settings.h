#include "vlmtrain/models/generation_config.h"
