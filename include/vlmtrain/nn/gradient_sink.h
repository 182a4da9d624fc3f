#pragma once

#include "vlmtrain/nn/layers/gradient_sink.h"
