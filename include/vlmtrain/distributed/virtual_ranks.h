#include "vlmtrain/distributed/fake_collectives.h"
