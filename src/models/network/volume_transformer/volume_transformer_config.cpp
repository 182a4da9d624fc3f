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

constexpr int64_t kMaxModalities = 1024;
constexpr int64_t kMaxVolumePatches = 1 << 20;  // of a volume: all of them see each other
constexpr int64_t kMaxChannels = 64;

/// MONAI's, of nn.LayerNorm and nn.GELU.
VisionTransformerConfig make_monai_config() {
  VisionTransformerConfig blocks;
  blocks.layer_norm_eps = 1e-5;
  blocks.activation = Activation::kGelu;
  blocks.fused_qkv = true;
  blocks.qkv_bias = false;
  blocks.names.norm1 = "norm1";
  blocks.names.norm2 = "norm2";
  blocks.names.attention = "attn";
  blocks.names.qkv = "qkv";
  blocks.names.mlp1 = "mlp.linear1";
  blocks.names.mlp2 = "mlp.linear2";
  return blocks;
}

VisionTransformerConfig read_block_config(const json& tower, const std::string& source) {
  json sizes = tower;
  // What of it is of pictures is read here.
  for (const char* key : {"image_size", "patch_size", "num_channels"}) sizes.erase(key);
  VisionTransformerConfig blocks = VisionTransformerConfig::from_json(sizes, make_monai_config(), source);
  blocks.qkv_bias = io::get_or<bool>(tower, "qkv_bias", false, source);
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
  if (std::ssize(names) > kMaxModalities) {
    throw data_error("{}: modalities has {} names; a model has at most {}", source, names.size(), kMaxModalities);
  }
  std::set<std::string> unique_names;
  for (const auto& name : names) {
    if (name.empty() || !unique_names.insert(name).second) {
      throw data_error("{}: modalities: {} stands twice or is empty; each modality has a name of its own", source,
                       io::to_json_string(json(name)));
    }
  }
  return names;
}

int64_t multiply_axes(const VolumeAxes& axes) {
  return axes[0] * axes[1] * axes[2];
}

}  // namespace

std::string format_axes(const VolumeAxes& axes) {
  return fmt::format("{}x{}x{}", axes[0], axes[1], axes[2]);
}

VolumeAxes read_axes(const json& json_config, std::string_view key, const VolumeAxes& fallback, int64_t max,
                     const std::string& source) {
  const auto it = json_config.find(key);
  if (it == json_config.end() || it->is_null()) return fallback;
  VolumeAxes axes{};
  if (it->is_array()) {
    const auto values = io::get<std::vector<int64_t>>(json_config, std::string(key), source);
    if (values.size() != axes.size()) {
      throw data_error("{}: {} has {} numbers; a volume has 3 axes: give one number for all, or 3", source, key,
                       values.size());
    }
    std::ranges::copy(values, axes.begin());
  } else {
    axes.fill(io::get<int64_t>(json_config, std::string(key), source));
  }
  for (const int64_t size : axes) check_size(size, key, max, source);
  return axes;
}

VolumeTransformerConfig VolumeTransformerConfig::from_json(const json& tower, const std::string& source) {
  VolumeTransformerConfig config;
  config.blocks = read_block_config(tower, source);
  config.channels = read_size(tower, "num_channels", config.channels, kMaxChannels, source);
  config.patch_size = read_size(tower, "patch_size", config.patch_size, kMaxImageSide, source);
  config.image_size = read_axes(tower, "image_size", config.image_size, kMaxImageSide, source);
  config.positions = read_positions(tower, source);
  config.class_token = io::get_or<bool>(tower, "class_token", config.class_token, source);
  config.modalities = read_modalities(tower, source);
  for (const int64_t side : config.image_size) {
    if (side % config.patch_size != 0) {
      throw data_error("{}: image_size {} is not a multiple of patch_size {} on every axis", source,
                       format_axes(config.image_size), config.patch_size);
    }
  }
  const VolumeAxes grid = config.compute_grid(config.image_size);
  config.max_patches = grid;
  if (config.positions == VolumePositions::kFactorized) {
    config.max_patches = read_axes(tower, "max_patches", grid, kMaxImageSide, source);
  }
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    if (grid[axis] > config.max_patches[axis]) {
      throw data_error("{}: image_size {} has {} patches and max_patches allows {}; raise it to {}", source,
                       format_axes(config.image_size), format_axes(grid), format_axes(config.max_patches),
                       std::ranges::max(grid));
    }
  }
  if (multiply_axes(config.max_patches) > kMaxVolumePatches) {
    throw data_error("{}: image_size and max_patches allow {} patches of a volume; at most {} are possible", source,
                     format_axes(config.max_patches), with_commas(kMaxVolumePatches));
  }
  return config;
}

VolumeAxes VolumeTransformerConfig::compute_grid(const VolumeAxes& volume) const {
  return {volume[0] / patch_size, volume[1] / patch_size, volume[2] / patch_size};
}

VolumeAxes VolumeTransformerConfig::volume_size(const std::optional<VolumeAxes>& requested) const {
  const VolumeAxes size = requested.value_or(image_size);
  if (size != image_size && positions == VolumePositions::kLearned) {
    throw usage_error(
        "data.volume.size: is {}, and this tower has positions for {} (image_size in config.json) alone; leave it out, "
        "or take a model with positions \"factorized\"",
        format_axes(size), format_axes(image_size));
  }
  for (size_t axis = 0; axis < size.size(); ++axis) {
    if (size[axis] < patch_size || size[axis] % patch_size != 0) {
      throw usage_error("data.volume.size: is {}, and the tower takes multiples of {} (patch_size in config.json)",
                        format_axes(size), patch_size);
    }
    if (size[axis] > max_patches[axis] * patch_size) {
      throw usage_error(
          "data.volume.size: is {}, and the tower has positions for at most {} (max_patches in config.json); give less",
          format_axes(size),
          format_axes({max_patches[0] * patch_size, max_patches[1] * patch_size, max_patches[2] * patch_size}));
    }
  }
  return size;
}

double VolumeTransformerConfig::num_parameters() const {
  const auto hidden = static_cast<double>(blocks.hidden_size);
  const double block = hidden * (4.0 * hidden + 2.0 * static_cast<double>(blocks.intermediate_size));
  const auto side = static_cast<double>(patch_size);
  const double num_positions = positions == VolumePositions::kFactorized
                                   ? static_cast<double>(max_patches[0] + max_patches[1] + max_patches[2])
                                   : static_cast<double>(multiply_axes(max_patches));
  return static_cast<double>(blocks.layers) * block +
         hidden * (static_cast<double>(channels) * side * side * side + num_positions);
}

}  // namespace vlmtrain::models
