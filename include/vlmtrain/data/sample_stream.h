#include "vlmtrain/data/loader/sample_stream.h"
