#include "vlmtrain/distributed/collectives.h"
