#include "vlmtrain/models/media_preview.h"
