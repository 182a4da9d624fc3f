#include "models/internvl/weight_names.h"

#include <vector>

namespace vlmtrain::models::internvl {

StateDictKeyMap make_key_map(std::span<const std::string> tensors) {
  static const std::vector<KeyAliases> table{
      {"model.vision_tower.", {"vision_tower.", "model.vision_tower."}},
      {"model.multi_modal_projector.", {"multi_modal_projector.", "model.multi_modal_projector."}},
      {"model.language_model.", {"language_model.model.", "model.language_model."}},
      {"lm_head.", {"language_model.lm_head.", "lm_head."}},
  };
  return StateDictKeyMap::detect(table, tensors);
}

}  // namespace vlmtrain::models::internvl
