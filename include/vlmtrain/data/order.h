#include "vlmtrain/data/order/mixture.h"
