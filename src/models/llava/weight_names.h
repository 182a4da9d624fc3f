#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/llava/config.h"

namespace vlmtrain::models::llava {

/// Where the modules stand in the tree of parameter names: for the Hugging Face layout as transformers 5 names its
/// modules, for the original one as LLaVA's code does.
struct ModuleNames {
  std::string_view vision_tower, projector_1, projector_2, language_model, output;
};
const ModuleNames& module_names(Layout layout);

/// How a checkpoint spells the parameters' names. transformers has changed the modules' places several times: of the
/// Hugging Face layout there are `language_model.model.layers…` and `model.language_model.layers…`,
/// `vision_tower.vision_model.encoder…` and the same without `vision_model`, and more.
class WeightNames {
 public:
  /// The spelling of a checkpoint with these tensors; of the published llava-hf checkpoints where there are none.
  static WeightNames of(Layout layout, std::span<const std::string> tensors);

  std::string spelled(const std::string& parameter) const;

 private:
  std::vector<std::pair<std::string_view, std::string_view>> prefixes_;  // the parameter's, the checkpoint's
};

}  // namespace vlmtrain::models::llava
