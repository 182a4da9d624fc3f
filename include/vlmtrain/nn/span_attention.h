#pragma once

#include "vlmtrain/nn/attention/span_attention.h"
