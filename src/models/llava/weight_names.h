#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/checkpoints/weight_spellings.h"
#include "models/llava/config.h"

namespace vlmtrain::models::llava {

/// Where the modules stand in the tree of parameter names: for the Hugging Face layout as transformers 5 names its
/// modules, for the original one as LLaVA's code does.
struct ModuleNames {
  std::string_view vision_tower, projector_1, projector_2, language_model, output;
};
const ModuleNames& get_module_names(Layout layout);

/// How a checkpoint with these tensors spells the parameters' names. Of the Hugging Face layout there are
/// `language_model.model.layers…` and `model.language_model.layers…`, `vision_tower.vision_model.encoder…` and the same
/// without `vision_model`, and more.
StateDictKeyMap make_key_map(Layout layout, std::span<const std::string> tensors);

}  // namespace vlmtrain::models::llava
