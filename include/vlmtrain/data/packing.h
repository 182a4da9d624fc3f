#include "vlmtrain/data/order/packing.h"
