#include "vlmtrain/data/index/ledger.h"
