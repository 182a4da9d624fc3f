#pragma once

#include "vlmtrain/nn/attention/key_value_cache.h"
