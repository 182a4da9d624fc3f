#include "vlmtrain/models/processor_files.h"
