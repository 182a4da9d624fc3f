#include "models/network/mask/sam_vit/sam_vit_config.h"

#include <algorithm>

#include "models/checkpoints/size_limits.h"
#include "models/network/mask/mask_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

SamVitConfig SamVitConfig::from_json(const nlohmann::json& json, const std::string& source) {
  constexpr NumberRange kMlpRatios{0, 1000};
  SamVitConfig config;
  config.hidden_size = read_size(json, "hidden_size", config.hidden_size, kMaxLayerWidth, source);
  config.output_channels = read_size(json, "output_channels", config.output_channels, kMaxLayerWidth, source);
  config.layers = read_size(json, "num_hidden_layers", config.layers, kMaxBlocks, source);
  config.heads = read_size(json, "num_attention_heads", config.heads, kMaxLayerWidth, source);
  config.image_size = read_size(json, "image_size", config.image_size, kMaxImageSide, source);
  config.patch_size = read_size(json, "patch_size", config.patch_size, kMaxImageSide, source);
  config.layer_norm_eps = read_number(json, "layer_norm_eps", config.layer_norm_eps, kNormEpsRange, source);
  config.qkv_bias = io::get_or<bool>(json, "qkv_bias", true, source);
  config.absolute_positions = io::get_or<bool>(json, "use_abs_pos", true, source);
  config.relative_positions = io::get_or<bool>(json, "use_rel_pos", true, source);
  config.window_size = read_size(json, "window_size", config.window_size, kMaxImageSide, source);
  config.global_blocks = io::get_or<std::vector<int64_t>>(json, "global_attn_indexes", config.global_blocks, source);
  const auto activation = io::get_or<std::string>(json, "hidden_act", "gelu", source);
  config.activation = parse_activation(activation, "hidden_act", source);
  const double mlp_ratio = read_number(json, "mlp_ratio", 4.0, kMlpRatios, source);
  const auto mlp_dim = static_cast<int64_t>(static_cast<double>(config.hidden_size) * mlp_ratio);
  config.mlp_dim = read_size(json, "mlp_dim", mlp_dim, kMaxLayerWidth, source);
  check_size(config.mlp_dim, "mlp_dim", kMaxLayerWidth, source);
  if (io::get_or<int64_t>(json, "num_channels", 3, source) != 3) {
    throw data_error("{}: num_channels must be 3", source);
  }
  if (config.hidden_size % config.heads != 0) {
    throw data_error("{}: hidden_size {} is not a multiple of num_attention_heads {}", source, config.hidden_size,
                     config.heads);
  }
  if (config.patch_size != MaskEncoder::kStride) {
    throw data_error("{}: patch_size {} is not supported; {} is", source, config.patch_size, MaskEncoder::kStride);
  }
  if (config.image_size % config.patch_size != 0) {
    throw data_error("{}: image_size {} is not a multiple of patch_size {}", source, config.image_size,
                     config.patch_size);
  }
  for (const int64_t block : config.global_blocks) {
    if (block < 0 || block >= config.layers) {
      throw data_error("{}: global_attn_indexes names layer {}, but num_hidden_layers is {}", source, block,
                       config.layers);
    }
  }
  return config;
}

double SamVitConfig::num_parameters() const {
  const auto hidden = static_cast<double>(hidden_size);
  const auto channels = static_cast<double>(output_channels);
  const double block = hidden * (4.0 * hidden + 2.0 * static_cast<double>(mlp_dim));
  const auto patch = static_cast<double>(3 * patch_size * patch_size);
  const auto num_positions = absolute_positions ? static_cast<double>(side() * side()) : 0.0;
  return static_cast<double>(layers) * block + hidden * (patch + num_positions + channels) + 9.0 * channels * channels;
}

int64_t SamVitConfig::get_window_size(int64_t block) const {
  return std::ranges::find(global_blocks, block) == global_blocks.end() ? window_size : 0;
}

}  // namespace vlmtrain::models
