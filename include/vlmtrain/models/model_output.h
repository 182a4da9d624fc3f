#include "vlmtrain/models/model.h"
