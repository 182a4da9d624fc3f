#pragma once

#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

/// What the base of an adapter may lack when it is loaded or merged.
LoadSettings make_base_load_settings(const nn::LoraSettings& lora);

}  // namespace vlmtrain::models
