#include "models/network/volume_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::models {

using nn::InitialValues;
using nn::ParameterScope;

namespace {

// Limits that reject damaged configs.
constexpr int64_t kMaxModalities = 1024;
constexpr int64_t kMaxVolumePatches = 1 << 20;  // per volume; attention between more is infeasible
constexpr int64_t kMaxChannels = 64;            // published towers have one to four

/// Returns the settings of MONAI's ViT: its names, and the defaults of torch.nn.LayerNorm and GELU.
VisionTransformerConfig make_monai_vit_config() {
  VisionTransformerConfig block_config;
  block_config.layer_norm_eps = 1e-5;
  block_config.activation = Activation::kGelu;
  block_config.has_fused_qkv = true;
  block_config.qkv_bias = false;
  block_config.names.norm1 = "norm1";
  block_config.names.norm2 = "norm2";
  block_config.names.attention = "attn";
  block_config.names.qkv = "qkv";
  block_config.names.fc1 = "mlp.linear1";
  block_config.names.fc2 = "mlp.linear2";
  return block_config;
}

VisionTransformerConfig read_block_config(const nlohmann::json& tower, const std::string& source) {
  nlohmann::json sizes = tower;
  // VolumeTransformerConfig reads these keys, which may have three numbers.
  for (const char* key : {"image_size", "patch_size", "num_channels"}) sizes.erase(key);
  VisionTransformerConfig block_config = VisionTransformerConfig::from_json(sizes, make_monai_vit_config(), source);
  block_config.qkv_bias = io::get_or<bool>(tower, "qkv_bias", false, source);
  return block_config;
}

VolumePositionEncoding read_position_encoding(const nlohmann::json& tower, const std::string& source) {
  const auto name = io::get_or<std::string>(tower, "positions", "learned", source);
  if (name == "learned") return VolumePositionEncoding::kLearned;
  if (name == "factorized") return VolumePositionEncoding::kFactorized;
  throw data_error("{}: positions {} is not supported; supported: learned, factorized", source, name);
}

std::vector<std::string> read_modalities(const nlohmann::json& tower, const std::string& source) {
  auto names = io::get_or<std::vector<std::string>>(tower, "modalities", {}, source);
  if (std::ssize(names) > kMaxModalities) {
    throw data_error("{}: modalities has {} names; at most {} are supported", source, names.size(), kMaxModalities);
  }
  std::set<std::string> unique_names;
  for (const auto& name : names) {
    if (name.empty() || !unique_names.insert(name).second) {
      throw data_error("{}: modalities: {} occurs twice or is empty; give each modality its own name", source,
                       io::to_json_string(nlohmann::json(name)));
    }
  }
  return names;
}

int64_t compute_numel(const VolumeShape& axes) {
  return axes[0] * axes[1] * axes[2];
}

/// The same as kPositionEmbeddingStd in vision_transformer.cpp.
constexpr double kVolumePositionEmbeddingStd = 0.5;

/// Name of the single table in MONAI. The names of tables per axis end with the axis.
constexpr std::string_view kPositionTableName = "position_embeddings";

std::vector<at::Tensor> make_position_tables(const ParameterScope& scope, const VolumeTransformerConfig& config) {
  const int64_t hidden = config.block_config.hidden_size;
  const VolumeShape& max_patches = config.max_patches;
  if (config.positions == VolumePositionEncoding::kLearned) {
    return {scope.add_embedding(kPositionTableName, {1, max_patches[0] * max_patches[1] * max_patches[2], hidden},
                                {.mean = 0, .deviation = kVolumePositionEmbeddingStd})};
  }
  std::vector<at::Tensor> tables;
  for (size_t axis = 0; axis < max_patches.size(); ++axis) {
    // The sum of three tables has the standard deviation of the single table.
    tables.push_back(scope.add_embedding(fmt::format("{}_{}", kPositionTableName, axis), {max_patches[axis], hidden},
                                         {.mean = 0, .deviation = kVolumePositionEmbeddingStd / std::sqrt(3.0)}));
  }
  return tables;
}

}  // namespace

std::string format_volume_shape(const VolumeShape& axes) {
  return fmt::format("{}x{}x{}", axes[0], axes[1], axes[2]);
}

VolumeShape read_volume_shape(const nlohmann::json& json_config, std::string_view key, const VolumeShape& fallback,
                              int64_t max, const std::string& source) {
  const auto it = json_config.find(key);
  if (it == json_config.end() || it->is_null()) return fallback;
  VolumeShape axes{};
  if (it->is_array()) {
    const auto values = io::get<std::vector<int64_t>>(json_config, std::string(key), source);
    if (values.size() != axes.size()) {
      throw data_error("{}: {} has {} numbers, but a volume has 3 axes; give one number for all, or 3", source, key,
                       values.size());
    }
    std::ranges::copy(values, axes.begin());
  } else {
    axes.fill(io::get<int64_t>(json_config, std::string(key), source));
  }
  for (const int64_t size : axes) check_size(size, key, max, source);
  return axes;
}

VolumeTransformerConfig VolumeTransformerConfig::from_json(const nlohmann::json& tower, const std::string& source) {
  VolumeTransformerConfig config;
  config.block_config = read_block_config(tower, source);
  config.channels = read_size(tower, "num_channels", config.channels, kMaxChannels, source);
  config.patch_size = read_size(tower, "patch_size", config.patch_size, kMaxImageSide, source);
  config.image_size = read_volume_shape(tower, "image_size", config.image_size, kMaxImageSide, source);
  config.positions = read_position_encoding(tower, source);
  config.has_class_token = io::get_or<bool>(tower, "class_token", config.has_class_token, source);
  config.modalities = read_modalities(tower, source);
  for (const int64_t side : config.image_size) {
    if (side % config.patch_size != 0) {
      throw config_error("{}: image_size {} is not a multiple of patch_size {} on every axis", source,
                         format_volume_shape(config.image_size), config.patch_size);
    }
  }
  const VolumeShape grid = config.compute_grid(config.image_size);
  config.max_patches = grid;
  if (config.positions == VolumePositionEncoding::kFactorized) {
    config.max_patches = read_volume_shape(tower, "max_patches", grid, kMaxImageSide, source);
  }
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    if (grid[axis] > config.max_patches[axis]) {
      throw data_error("{}: image_size {} has {} patches, but max_patches allows {}; raise it to {}", source,
                       format_volume_shape(config.image_size), format_volume_shape(grid),
                       format_volume_shape(config.max_patches), std::ranges::max(grid));
    }
  }
  if (compute_numel(config.max_patches) > kMaxVolumePatches) {
    throw data_error("{}: image_size and max_patches allow {} patches of a volume; at most {} are possible", source,
                     format_volume_shape(config.max_patches), format_with_commas(kMaxVolumePatches));
  }
  return config;
}

VolumeShape VolumeTransformerConfig::compute_grid(const VolumeShape& volume) const {
  return {volume[0] / patch_size, volume[1] / patch_size, volume[2] / patch_size};
}

VolumeShape VolumeTransformerConfig::resolve_volume_size(const std::optional<VolumeShape>& requested) const {
  const VolumeShape size = requested.value_or(image_size);
  if (size != image_size && positions == VolumePositionEncoding::kLearned) {
    throw usage_error(
        "{}: is {}, but this tower has positions only for {} (image_size in config.json); omit it, or use a model with "
        "positions \"factorized\"",
        keys::data::kVolumeSize, format_volume_shape(size), format_volume_shape(image_size));
  }
  for (size_t axis = 0; axis < size.size(); ++axis) {
    if (size[axis] < patch_size || size[axis] % patch_size != 0) {
      throw usage_error("{}: is {}, but the tower needs multiples of {} (patch_size in config.json)",
                        keys::data::kVolumeSize, format_volume_shape(size), patch_size);
    }
    if (size[axis] > max_patches[axis] * patch_size) {
      throw usage_error(
          "{}: is {}, but the tower has positions for at most {} (max_patches in config.json); reduce it",
          keys::data::kVolumeSize, format_volume_shape(size),
          format_volume_shape({max_patches[0] * patch_size, max_patches[1] * patch_size, max_patches[2] * patch_size}));
    }
  }
  return size;
}

double VolumeTransformerConfig::num_parameters() const {
  const auto hidden = static_cast<double>(block_config.hidden_size);
  // Four attention matrices and two of the MLP per block.
  const double parameters_per_block =
      hidden * (4.0 * hidden + 2.0 * static_cast<double>(block_config.intermediate_size));
  const auto side = static_cast<double>(patch_size);
  const double num_positions = positions == VolumePositionEncoding::kFactorized
                                   ? static_cast<double>(max_patches[0] + max_patches[1] + max_patches[2])
                                   : static_cast<double>(compute_numel(max_patches));
  return static_cast<double>(block_config.num_layers) * parameters_per_block +
         hidden * (static_cast<double>(channels) * side * side * side + num_positions);
}

VolumeTransformer::VolumeTransformer(const ParameterScope& scope, const VolumeTransformerConfig& config)
    : config_(config),
      patch_weight_((scope / "patch_embedding" / "patch_embeddings")
                        .add_parameter("weight",
                                       {config.block_config.hidden_size, config.channels, config.patch_size,
                                        config.patch_size, config.patch_size},
                                       InitialValues::kaiming(config.channels * config.patch_size * config.patch_size *
                                                              config.patch_size))),
      patch_bias_((scope / "patch_embedding" / "patch_embeddings")
                      .add_parameter("bias", {config.block_config.hidden_size}, InitialValues::zeros())),
      position_tables_(make_position_tables(scope / "patch_embedding", config)),
      class_token_(config.has_class_token ? scope.add_parameter("cls_token", {1, 1, config.block_config.hidden_size},
                                                                {.mean = 0, .deviation = kVolumePositionEmbeddingStd})
                                          : at::Tensor()),
      // Zeros preserve the outputs of a tower that was trained without modality embeddings.
      modality_embeddings_(config.modalities.empty() ? at::Tensor()
                                                     : scope.add_embedding("modality_embeddings",
                                                                           {std::ssize(config.modalities) + 1,
                                                                            config.block_config.hidden_size},
                                                                           InitialValues::zeros())),
      blocks_(scope / "blocks", config.block_config.num_layers, config.block_config, memory::Component::kVision),
      norm_(scope / "norm", config.block_config.hidden_size, config.block_config.layer_norm_eps) {}

VolumeShape VolumeTransformer::compute_grid(const at::Tensor& volumes) const {
  return config_.compute_grid({volumes.size(2), volumes.size(3), volumes.size(4)});
}

/// Returns the position embeddings, [1, patches, hidden].
at::Tensor VolumeTransformer::compute_position_embeddings(const VolumeShape& grid) const {
  if (config_.positions == VolumePositionEncoding::kLearned) return position_tables_[0];
  const auto get_axis_embeddings = [&](size_t axis) { return position_tables_[axis].narrow(0, 0, grid[axis]); };
  return (get_axis_embeddings(0).unsqueeze(1).unsqueeze(1) + get_axis_embeddings(1).unsqueeze(1) +
          get_axis_embeddings(2))
      .flatten(0, 2)
      .unsqueeze(0);
}

/// Returns the embedded patches after the class token, if any: [rows, patches + class tokens,
/// hidden].
at::Tensor VolumeTransformer::embed(const at::Tensor& volumes, const at::Tensor& modalities,
                                    const VolumeShape& grid) const {
  const int64_t rows = volumes.size(0), channels = config_.channels, patch = config_.patch_size;
  const auto [x, y, z] = grid;
  const at::Tensor patches = volumes.reshape({rows, channels, x, patch, y, patch, z, patch})
                                 .permute({0, 2, 4, 6, 1, 3, 5, 7})
                                 .reshape({rows * x * y * z, channels * patch * patch * patch});
  at::Tensor embeddings =
      nn::linear(nn::pad_to_aligned_width(patches), nn::pad_to_aligned_width(patch_weight_.flatten(1)), patch_bias_)
          .view({rows, x * y * z, -1});
  embeddings = embeddings + compute_position_embeddings(grid);
  if (modality_embeddings_.defined()) {
    // Embedding 0 belongs to unknown modalities.
    const at::Tensor modality_ids =
        modalities.defined() ? modalities : at::zeros({rows}, volumes.options().dtype(at::kLong));
    embeddings = embeddings + at::embedding(modality_embeddings_, modality_ids).unsqueeze(1);
  }
  if (class_token_.defined()) embeddings = at::cat({class_token_.expand({rows, 1, -1}), embeddings}, 1);
  return embeddings;
}

at::Tensor VolumeTransformer::operator()(const at::Tensor& volumes, const at::Tensor& modalities,
                                         int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(volumes.dim() == 5 && volumes.size(1) == config_.channels, "rows of {} axes and {} channels for {}",
                 volumes.dim(), volumes.size(1), config_.channels);
  config_.resolve_volume_size(VolumeShape{volumes.size(2), volumes.size(3), volumes.size(4)});
  const at::Tensor embeddings = embed(volumes, modalities, compute_grid(volumes));
  const int64_t rows = embeddings.size(0), length = embeddings.size(1);
  const auto segments = nn::Segments::uniform(rows, length, volumes.device());
  at::Tensor features = norm_(blocks_.run(embeddings.flatten(0, 1), recomputed_blocks, segments).last_hidden_state);
  if (!class_token_.defined()) return features;
  return features.view({rows, length, -1}).narrow(1, 1, length - 1).flatten(0, 1);
}

}  // namespace vlmtrain::models
