#include "models/brain_llava/tower_checkpoint.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <set>
#include <utility>

#include "models/checkpoints/load_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::models::brain_llava {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view kTowerPrefix = "vision_tower.";
constexpr std::string_view kConvPatchWeightName = "patch_embedding.patch_embeddings.weight";
constexpr std::string_view kLinearPatchWeightName = "patch_embedding.patch_embeddings.1.weight";
constexpr std::string_view kPositionEmbeddingsName = "patch_embedding.position_embeddings";
constexpr int64_t kDefaultHeadDim = 64;  // features per head of ViT-B and ViT-L

TensorSourceErrorMessages make_tower_error_messages() {
  return {.not_found_message =
              "is not a volume tower; give a .pt, .pth or .safetensors file with the weights of MONAI's ViT",
          .choose_file_hint = "give the tower's file itself"};
}

/// Returns the cube root of a positive cube number; nothing for other numbers.
std::optional<int64_t> find_integer_cube_root(int64_t number) {
  const auto root = static_cast<int64_t>(std::llround(std::cbrt(static_cast<double>(number))));
  return root > 0 && root * root * root == number ? std::optional(root) : std::nullopt;
}

/// Returns true for cross-attention tensors. Newer versions of MONAI store them for every ViT, but
/// one without cross-attention does not use them.
bool is_unused_tensor(std::string_view name) {
  return name.find(".cross_attn.") != std::string_view::npos ||
         name.find(".norm_cross_attn.") != std::string_view::npos;
}

}  // namespace

TowerCheckpoint::TowerCheckpoint(const std::filesystem::path& path) : tensors_(path, make_tower_error_messages()) {
  for (const auto& [name, tensor] : tensors_.all()) {
    for (const std::string_view patch_weight_name : {kConvPatchWeightName, kLinearPatchWeightName}) {
      const bool is_patch_weight = name == patch_weight_name || name.ends_with(fmt::format(".{}", patch_weight_name));
      if (!is_patch_weight) continue;
      prefix_ = name.substr(0, name.size() - patch_weight_name.size());
      is_linear_patch_embedding_ = patch_weight_name == kLinearPatchWeightName;
      return;
    }
  }
  throw data_error(
      "{}: has no tensor {}, which the weights of MONAI's ViT contain{}", path.string(), kConvPatchWeightName,
      tensors_.all().empty() ? "" : fmt::format(" (it has, for example, {})", tensors_.all().begin()->first));
}

const StoredTensor& TowerCheckpoint::at(const std::string& name) const {
  const StoredTensor* const tensor = find(name);
  if (tensor == nullptr || tensor->shape.empty()) {
    throw data_error("{}: the volume tower has no tensor {}{}; download it again", path().string(), prefix_, name);
  }
  return *tensor;
}

void TowerCheckpoint::set_patch_config_keys(ordered_json& config) const {
  const auto& shape = at(std::string(is_linear_patch_embedding_ ? kLinearPatchWeightName : kConvPatchWeightName)).shape;
  std::optional<int64_t> patch_size;
  int64_t channels = config.value("num_channels", int64_t{1});
  if (is_linear_patch_embedding_) {
    if (shape.size() == 2 && shape[1] % channels == 0) patch_size = find_integer_cube_root(shape[1] / channels);
  } else if (shape.size() == 5 && shape[2] == shape[3] && shape[3] == shape[4]) {
    channels = shape[1];
    patch_size = shape[2];
  }
  if (!patch_size) {
    throw data_error(
        "{}: {}{} has shape [{}]; patches must be cubes of {} channels: [hidden, channels, patch, patch, patch]",
        path().string(), prefix_, is_linear_patch_embedding_ ? kLinearPatchWeightName : kConvPatchWeightName,
        fmt::join(shape, ", "), channels);
  }
  config["hidden_size"] = shape[0];
  config["num_channels"] = channels;
  config["patch_size"] = *patch_size;
}

void TowerCheckpoint::set_position_config_keys(ordered_json& config,
                                               const std::optional<VolumeShape>& volume_size) const {
  const auto patch_size = config["patch_size"].get<int64_t>();
  VolumeShape size =
      volume_size.value_or(read_volume_shape(config, "image_size", {96, 96, 96}, int64_t{1} << 14, "image_size"));
  if (const StoredTensor* const first_axis = find(std::string(kPositionEmbeddingsName) + "_0")) {
    config["positions"] = "factorized";
    config["max_patches"] = {first_axis->shape.at(0), at(std::string(kPositionEmbeddingsName) + "_1").shape.at(0),
                             at(std::string(kPositionEmbeddingsName) + "_2").shape.at(0)};
    config["image_size"] = size;
    return;
  }
  const auto& table = at(std::string(kPositionEmbeddingsName)).shape;
  const int64_t num_positions = table.size() == 3 ? table[1] : 0;
  const auto count_patches = [patch_size](const VolumeShape& axes) {
    return (axes[0] / patch_size) * (axes[1] / patch_size) * (axes[2] / patch_size);
  };
  // Without --volume-size, a table that does not fit the preset's volume can be that of a cube.
  if (count_patches(size) != num_positions && !volume_size) {
    if (const auto side = find_integer_cube_root(num_positions)) size.fill(*side * patch_size);
  }
  if (count_patches(size) != num_positions) {
    throw usage_error(
        "{}: has positions for {} patches with a side of {} voxels, but a volume of size {} has {} patches; give the "
        "volume size with --volume-size",
        path().string(), num_positions, patch_size, format_volume_shape(size), count_patches(size));
  }
  config["positions"] = "learned";
  config.erase("max_patches");
  config["image_size"] = size;
}

ordered_json TowerCheckpoint::config(ordered_json preset, const TowerOptions& options) const {
  const auto preset_hidden_size = preset.value("hidden_size", int64_t{0});
  set_patch_config_keys(preset);
  set_position_config_keys(preset, options.volume_size);
  const auto width = preset["hidden_size"].get<int64_t>();
  if (options.num_heads) {
    preset["num_attention_heads"] = *options.num_heads;
  } else if (width != preset_hidden_size) {
    if (width % kDefaultHeadDim != 0) {
      throw usage_error("{}: cannot derive the number of heads from {} features; give --tower-heads", path().string(),
                        width);
    }
    preset["num_attention_heads"] = width / kDefaultHeadDim;
  }
  if (width % preset["num_attention_heads"].get<int64_t>() != 0) {
    throw usage_error("{}: {} features are not divisible by {} heads; give --tower-heads", path().string(), width,
                      preset["num_attention_heads"].get<int64_t>());
  }
  int64_t num_blocks = 0;
  while (tensors_.has_prefix(fmt::format("{}blocks.{}.", prefix_, num_blocks))) ++num_blocks;
  preset["num_hidden_layers"] = num_blocks;
  preset["intermediate_size"] = at("blocks.0.mlp.linear1.weight").shape[0];
  preset["qkv_bias"] = find("blocks.0.attn.qkv.bias") != nullptr;
  preset["class_token"] = find("cls_token") != nullptr;
  return preset;
}

std::optional<std::string> TowerCheckpoint::find_stored_tensor_name(const nn::Parameter& parameter) const {
  if (!parameter.name.starts_with(kTowerPrefix)) return std::nullopt;
  std::string name = parameter.name.substr(kTowerPrefix.size());
  if (is_linear_patch_embedding_ && name.starts_with("patch_embedding.patch_embeddings.")) {
    name.insert(name.rfind('.'), ".1");
  }
  return prefix_ + name;
}

std::vector<int64_t> TowerCheckpoint::find_loadable_shape(const nn::Parameter& parameter,
                                                          const StoredTensor& tensor) const {
  const auto sizes = parameter.sizes();
  const bool is_linear_patch_weight = is_linear_patch_embedding_ && sizes.size() == 5 && tensor.shape.size() == 2;
  const bool can_reshape_weight = is_linear_patch_weight && tensor.shape[0] == sizes[0] &&
                                  tensor.shape[0] * tensor.shape[1] == parameter.elements();
  return can_reshape_weight ? sizes.vec() : tensor.shape;
}

void TowerCheckpoint::check_weights(const std::vector<nn::Parameter>& parameters) const {
  std::vector<std::string> problems;
  std::set<std::string> expected;
  for (nn::Parameter parameter : parameters) {
    const auto name = find_stored_tensor_name(parameter);
    if (!name) continue;
    expected.insert(*name);
    const StoredTensor* const tensor = tensors_.find(*name);
    if (tensor == nullptr) {
      // MONAI's ViT has no modality embeddings, so they keep their initial values.
      if (!name->ends_with("modality_embeddings")) problems.push_back("missing: " + *name);
      continue;
    }
    const auto shape = find_loadable_shape(parameter, *tensor);
    parameter.name = *name;  // error messages name the stored tensor
    for (std::string problem :
         {describe_unsupported_dtype(*name, tensor->dtype), describe_shape_mismatch(parameter, shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  throw_if_problems(fmt::format("{}: is an incomplete volume tower; download it again", path().string()), problems);
  std::vector<std::string> unexpected_names;
  for (const auto& [name, tensor] : tensors_.all()) {
    if (!expected.contains(name) && !is_unused_tensor(name)) unexpected_names.push_back(name);
  }
  if (unexpected_names.empty()) return;
  const size_t count = unexpected_names.size();
  spdlog::warn("{}: {} tensors are not part of a volume tower and are skipped: {}", path().string(), count,
               fmt::join(truncate_list(std::move(unexpected_names)), ", "));
}

std::optional<io::LazyTensor> TowerCheckpoint::find_weight(const nn::Parameter& parameter) const {
  const auto name = find_stored_tensor_name(parameter);
  const StoredTensor* const tensor = name ? tensors_.find(*name) : nullptr;
  if (tensor == nullptr) return std::nullopt;
  const auto shape = find_loadable_shape(parameter, *tensor);
  const bool has_same_shape = shape == tensor->shape;
  // MONAI's "perceptron" flattens a patch as [side, side, side, channels]; a convolution's weight
  // is [hidden, channels, side, side, side].
  const auto read_conv_weight = [read = tensor->read, sizes = parameter.sizes().vec()] {
    return read().view({sizes[0], sizes[2], sizes[3], sizes[4], sizes[1]}).permute({0, 4, 1, 2, 3}).contiguous();
  };
  return io::LazyTensor{.name = parameter.name,
                        .dtype = tensor->dtype,
                        .shape = shape,
                        .materialize = has_same_shape ? tensor->read : read_conv_weight,
                        .on_written = tensor->release};
}

}  // namespace vlmtrain::models::brain_llava
