#include "models/llava/weight_names.h"

#include <algorithm>

namespace vlmtrain::models::llava {

namespace {

struct Spellings {
  std::string_view parameter;
  std::vector<std::string_view> known;  // the published one first; before any other that is its beginning
};

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

bool any_starts_with(std::span<const std::string> names, std::string_view prefix) {
  return std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(prefix); });
}

}  // namespace

const ModuleNames& module_names(Layout layout) {
  static constexpr ModuleNames kHuggingFace{"model.vision_tower", "model.multi_modal_projector.linear_1",
                                            "model.multi_modal_projector.linear_2", "model.language_model", "lm_head"};
  static constexpr ModuleNames kOriginal{"model.vision_tower.vision_tower.vision_model", "model.mm_projector.0",
                                         "model.mm_projector.2", "model", "lm_head"};
  return layout == Layout::kHuggingFace ? kHuggingFace : kOriginal;
}

WeightNames WeightNames::of(Layout layout, std::span<const std::string> tensors) {
  WeightNames names;
  if (layout == Layout::kOriginal) return names;
  for (const auto& [parameter, known] : hugging_face_spellings()) {
    const auto found = std::ranges::find_if(known, [&](auto prefix) { return any_starts_with(tensors, prefix); });
    names.prefixes_.emplace_back(parameter, found == known.end() ? known.front() : *found);
  }
  return names;
}

std::string WeightNames::spelled(const std::string& parameter) const {
  for (const auto& [own, checkpoints] : prefixes_) {
    if (parameter.starts_with(own)) return std::string(checkpoints) + parameter.substr(own.size());
  }
  return parameter;
}

}  // namespace vlmtrain::models::llava
