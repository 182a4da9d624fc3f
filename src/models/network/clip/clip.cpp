#include "models/network/clip/clip.h"

namespace vlmtrain::models {

VisionTransformerConfig clip_config(const nlohmann::json& json, const std::string& source) {
  VisionTransformerConfig defaults;
  defaults.patch_size = 32;
  defaults.layer_norm_eps = 1e-5;
  defaults.activation = Activation::kQuickGelu;
  defaults.class_token = true;
  defaults.patch_bias = false;
  defaults.pre_layernorm = true;
  return VisionTransformerConfig::from_json(json, defaults, source);
}

}  // namespace vlmtrain::models
