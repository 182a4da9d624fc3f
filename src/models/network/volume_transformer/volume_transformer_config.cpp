#include "models/network/volume_transformer/volume_transformer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "models/checkpoints/size_limits.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

namespace {

using nlohmann::json;

constexpr int64_t kMostModalities = 1024;
constexpr int64_t kMostVolumePatches = 1 << 20;  // of a volume: all of them see each other
constexpr int64_t kMostChannels = 64;

/// MONAI's, of nn.LayerNorm and nn.GELU.
VisionTransformerConfig monai_blocks() {
  VisionTransformerConfig blocks;
  blocks.layer_norm_eps = 1e-5;
  blocks.activation = Activation::kGelu;
  blocks.fused_query_key_value = true;
  blocks.query_key_value_bias = false;
  blocks.names.norm1 = "norm1";
  blocks.names.norm2 = "norm2";
  blocks.names.attention = "attn";
  blocks.names.query_key_value = "qkv";
  blocks.names.mlp1 = "mlp.linear1";
  blocks.names.mlp2 = "mlp.linear2";
  return blocks;
}

VisionTransformerConfig read_blocks(const json& tower, const std::string& source) {
  json sizes = tower;
  // What of it is of pictures is read here.
  for (const char* key : {"image_size", "patch_size", "num_channels"}) sizes.erase(key);
  VisionTransformerConfig blocks = VisionTransformerConfig::from_json(sizes, monai_blocks(), source);
  blocks.query_key_value_bias = io::get_or<bool>(tower, "qkv_bias", false, source);
  return blocks;
}

VolumePositions read_positions(const json& tower, const std::string& source) {
  const auto name = io::get_or<std::string>(tower, "positions", "learned", source);
  if (name == "learned") return VolumePositions::kLearned;
  if (name == "factorized") return VolumePositions::kFactorized;
  throw data_error("{}: positions {} are not known; learned and factorized are", source, name);
}

std::vector<std::string> read_modalities(const json& tower, const std::string& source) {
  auto names = io::get_or<std::vector<std::string>>(tower, "modalities", {}, source);
  if (std::ssize(names) > kMostModalities) {
    throw data_error("{}: modalities has {} names; a model has at most {}", source, names.size(), kMostModalities);
  }
  std::set<std::string> seen;
  for (const auto& name : names) {
    if (name.empty() || !seen.insert(name).second) {
      throw data_error("{}: modalities: {} stands twice or is empty; each modality has a name of its own", source,
                       io::json_text(json(name)));
    }
  }
  return names;
}

int64_t product(const VolumeAxes& axes) {
  return axes[0] * axes[1] * axes[2];
}

}  // namespace

std::string axes_words(const VolumeAxes& axes) {
  return fmt::format("{}x{}x{}", axes[0], axes[1], axes[2]);
}

VolumeAxes axes_of(const json& json_config, std::string_view key, const VolumeAxes& fallback, int64_t most,
                   const std::string& source) {
  const auto found = json_config.find(key);
  if (found == json_config.end() || found->is_null()) return fallback;
  VolumeAxes axes{};
  if (found->is_array()) {
    const auto numbers = io::get<std::vector<int64_t>>(json_config, std::string(key), source);
    if (numbers.size() != axes.size()) {
      throw data_error("{}: {} has {} numbers; a volume has 3 axes: give one number for all, or 3", source, key,
                       numbers.size());
    }
    std::ranges::copy(numbers, axes.begin());
  } else {
    axes.fill(io::get<int64_t>(json_config, std::string(key), source));
  }
  for (const int64_t size : axes) check_size(size, key, most, source);
  return axes;
}

VolumeTransformerConfig VolumeTransformerConfig::from_json(const json& tower, const std::string& source) {
  VolumeTransformerConfig config;
  config.blocks = read_blocks(tower, source);
  config.channels = size_of(tower, "num_channels", config.channels, kMostChannels, source);
  config.patch_size = size_of(tower, "patch_size", config.patch_size, kLargestSide, source);
  config.image_size = axes_of(tower, "image_size", config.image_size, kLargestSide, source);
  config.positions = read_positions(tower, source);
  config.class_token = io::get_or<bool>(tower, "class_token", config.class_token, source);
  config.modalities = read_modalities(tower, source);
  for (const int64_t side : config.image_size) {
    if (side % config.patch_size != 0) {
      throw data_error("{}: image_size {} is not a multiple of patch_size {} on every axis", source,
                       axes_words(config.image_size), config.patch_size);
    }
  }
  const VolumeAxes own = config.grid_of(config.image_size);
  config.most_patches = own;
  if (config.positions == VolumePositions::kFactorized) {
    config.most_patches = axes_of(tower, "max_patches", own, kLargestSide, source);
  }
  for (size_t axis = 0; axis < own.size(); ++axis) {
    if (own[axis] > config.most_patches[axis]) {
      throw data_error("{}: image_size {} has {} patches and max_patches allows {}; raise it to {}", source,
                       axes_words(config.image_size), axes_words(own), axes_words(config.most_patches),
                       std::ranges::max(own));
    }
  }
  if (product(config.most_patches) > kMostVolumePatches) {
    throw data_error("{}: image_size and max_patches allow {} patches of a volume; at most {} are possible", source,
                     axes_words(config.most_patches), grouped(kMostVolumePatches));
  }
  return config;
}

VolumeAxes VolumeTransformerConfig::grid_of(const VolumeAxes& volume) const {
  return {volume[0] / patch_size, volume[1] / patch_size, volume[2] / patch_size};
}

VolumeAxes VolumeTransformerConfig::volume_size(const std::optional<VolumeAxes>& wanted) const {
  const VolumeAxes size = wanted.value_or(image_size);
  if (size != image_size && positions == VolumePositions::kLearned) {
    throw usage_error(
        "data.volume.size: is {}, and this tower has positions for {} (image_size in config.json) alone; leave it out, "
        "or take a model with positions \"factorized\"",
        axes_words(size), axes_words(image_size));
  }
  for (size_t axis = 0; axis < size.size(); ++axis) {
    if (size[axis] < patch_size || size[axis] % patch_size != 0) {
      throw usage_error("data.volume.size: is {}, and the tower takes multiples of {} (patch_size in config.json)",
                        axes_words(size), patch_size);
    }
    if (size[axis] > most_patches[axis] * patch_size) {
      throw usage_error(
          "data.volume.size: is {}, and the tower has positions for at most {} (max_patches in config.json); give less",
          axes_words(size),
          axes_words({most_patches[0] * patch_size, most_patches[1] * patch_size, most_patches[2] * patch_size}));
    }
  }
  return size;
}

double VolumeTransformerConfig::elements() const {
  const auto hidden = static_cast<double>(blocks.hidden_size);
  const double block = hidden * (4.0 * hidden + 2.0 * static_cast<double>(blocks.intermediate_size));
  const auto side = static_cast<double>(patch_size);
  const double entries = positions == VolumePositions::kFactorized
                             ? static_cast<double>(most_patches[0] + most_patches[1] + most_patches[2])
                             : static_cast<double>(product(most_patches));
  return static_cast<double>(blocks.layers) * block +
         hidden * (static_cast<double>(channels) * side * side * side + entries);
}

}  // namespace vlmtrain::models
