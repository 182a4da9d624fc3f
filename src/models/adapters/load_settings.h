#pragma once

#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

/// What the base of an adapter may lack when it is loaded or merged.
LoadSettings load_settings_of(const nn::LoraSettings& lora);

}  // namespace vlmtrain::models
