#include "models/network/siglip/siglip.h"

#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

VisionTransformerConfig siglip_config(const nlohmann::json& json, const std::string& source) {
  auto config = VisionTransformerConfig::from_json(json, {}, source);
  config.pooling_head = io::get_or<bool>(json, "vision_use_head", true, source);
  return config;
}

VisionTransformerConfig idefics3_vision_config(const nlohmann::json& json, const std::string& source) {
  VisionTransformerConfig defaults;
  defaults.hidden_size = 1152;
  defaults.heads = 16;
  defaults.patch_size = 32;
  defaults.positions = PatchPositions::kBucketed;
  return VisionTransformerConfig::from_json(json, defaults, source);
}

}  // namespace vlmtrain::models
