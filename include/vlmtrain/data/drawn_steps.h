#include "vlmtrain/data/order/sample_order.h"
