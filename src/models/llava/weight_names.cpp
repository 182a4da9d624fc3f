#include "models/llava/weight_names.h"

#include <vector>

namespace vlmtrain::models::llava {

namespace {

const std::vector<Spellings>& hugging_face_spellings() {
  static const std::vector<Spellings> table{
      {"model.vision_tower.",
       {"vision_tower.vision_model.", "model.vision_tower.vision_model.", "vision_tower.", "model.vision_tower."}},
      {"model.multi_modal_projector.", {"multi_modal_projector.", "model.multi_modal_projector."}},
      {"model.language_model.", {"language_model.model.", "model.language_model."}},
      {"lm_head.", {"language_model.lm_head.", "lm_head."}},
  };
  return table;
}

}  // namespace

const ModuleNames& module_names(Layout layout) {
  static constexpr ModuleNames kHuggingFace{"model.vision_tower", "model.multi_modal_projector.linear_1",
                                            "model.multi_modal_projector.linear_2", "model.language_model", "lm_head"};
  static constexpr ModuleNames kOriginal{"model.vision_tower.vision_tower.vision_model", "model.mm_projector.0",
                                         "model.mm_projector.2", "model", "lm_head"};
  return layout == Layout::kHuggingFace ? kHuggingFace : kOriginal;
}

WeightSpellings weight_names(Layout layout, std::span<const std::string> tensors) {
  return layout == Layout::kOriginal ? WeightSpellings() : WeightSpellings::of(hugging_face_spellings(), tensors);
}

}  // namespace vlmtrain::models::llava
