#pragma once

#include "vlmtrain/nn/weights/lora_settings.h"
