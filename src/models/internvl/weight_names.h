#pragma once

#include <span>
#include <string>

#include "models/checkpoints/weight_spellings.h"

namespace vlmtrain::models::internvl {

/// How a checkpoint with these tensors spells the parameters' names: the published ones `vision_tower…` and
/// `language_model.model.layers…`, transformers 5's modules `model.vision_tower…` and `model.language_model.layers…`.
StateDictKeyMap make_key_map(std::span<const std::string> tensors);

}  // namespace vlmtrain::models::internvl
