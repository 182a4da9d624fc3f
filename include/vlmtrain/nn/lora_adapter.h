#pragma once

#include "vlmtrain/nn/layers/lora_adapter.h"
