#include "models/llava/weight_names.h"

#include <vector>

namespace vlmtrain::models::llava {

namespace {

const std::vector<KeyAliases>& get_hugging_face_aliases() {
  static const std::vector<KeyAliases> table{
      {"model.vision_tower.",
       {"vision_tower.vision_model.", "model.vision_tower.vision_model.", "vision_tower.", "model.vision_tower."}},
      {"model.multi_modal_projector.", {"multi_modal_projector.", "model.multi_modal_projector."}},
      {"model.language_model.", {"language_model.model.", "model.language_model."}},
      {"lm_head.", {"language_model.lm_head.", "lm_head."}},
  };
  return table;
}

}  // namespace

const ModuleNames& get_module_names(Layout layout) {
  static constexpr ModuleNames kHuggingFace{"model.vision_tower", "model.multi_modal_projector.linear_1",
                                            "model.multi_modal_projector.linear_2", "model.language_model", "lm_head"};
  static constexpr ModuleNames kOriginal{"model.vision_tower.vision_tower.vision_model", "model.mm_projector.0",
                                         "model.mm_projector.2", "model", "lm_head"};
  return layout == Layout::kHuggingFace ? kHuggingFace : kOriginal;
}

StateDictKeyMap make_key_map(Layout layout, std::span<const std::string> tensors) {
  return layout == Layout::kOriginal ? StateDictKeyMap() : StateDictKeyMap::detect(get_hugging_face_aliases(), tensors);
}

}  // namespace vlmtrain::models::llava
