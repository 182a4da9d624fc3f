#include "vlmtrain/models/mask_families.h"

#include "models/checkpoints/read_model_config.h"
#include "models/registry.h"

namespace vlmtrain::models {

bool predicts_masks(const std::filesystem::path& folder) {
  return find_family(read_model_config(folder), folder).mask_side != nullptr;
}

std::vector<std::string> get_default_modules_to_save(const std::filesystem::path& folder, const FrozenParts& frozen) {
  std::vector<std::string> modules;
  if (!std::filesystem::exists(folder / "config.json")) return modules;
  for (const auto& [module, component] : find_family(read_model_config(folder), folder).default_modules_to_save) {
    if (component == nn::Component::kMaskEncoder && frozen.mask_encoder) continue;
    modules.emplace_back(module);
  }
  return modules;
}

}  // namespace vlmtrain::models
