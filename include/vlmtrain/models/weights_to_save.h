#include "vlmtrain/models/checkpoint_contents.h"
