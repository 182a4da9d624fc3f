#include "models/brain_llava/assembly/tower_source.h"

#include <fmt/ranges.h>

#include <cmath>
#include <set>
#include <utility>

#include "models/checkpoints/load_parameters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::models::brain_llava {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view kTower = "vision_tower.";
constexpr std::string_view kConvolution = "patch_embedding.patch_embeddings.weight";
constexpr std::string_view kPerceptron = "patch_embedding.patch_embeddings.1.weight";
constexpr std::string_view kOneTable = "patch_embedding.position_embeddings";
constexpr int64_t kUsualHead = 64;  // features; of ViT-B, ViT-L

TensorSourceWords words_of_towers() {
  return {.is_none = "is no tower of volumes; give a .pt, .pth or .safetensors file with the weights of MONAI's ViT",
          .give_one = "give the tower's file itself"};
}

/// The whole number whose cube it is; nothing where it is none.
std::optional<int64_t> cube_root(int64_t number) {
  const auto root = static_cast<int64_t>(std::llround(std::cbrt(static_cast<double>(number))));
  return root > 0 && root * root * root == number ? std::optional(root) : std::nullopt;
}

/// Of newer versions of MONAI, where a ViT attends to nothing else.
bool is_never_run(std::string_view name) {
  return name.find(".cross_attn.") != std::string_view::npos ||
         name.find(".norm_cross_attn.") != std::string_view::npos;
}

}  // namespace

TowerSource::TowerSource(const std::filesystem::path& place) : tensors_(place, words_of_towers()) {
  for (const auto& [name, tensor] : tensors_.all()) {
    for (const std::string_view patch : {kConvolution, kPerceptron}) {
      const bool is_whole = name == patch || name.ends_with(fmt::format(".{}", patch));
      if (!is_whole) continue;
      beginning_ = name.substr(0, name.size() - patch.size());
      is_perceptron_ = patch == kPerceptron;
      return;
    }
  }
  throw data_error("{}: has no tensor {}, as the weights of MONAI's ViT have{}", place.string(), kConvolution,
                   tensors_.all().empty() ? "" : fmt::format(" (it has {}, say)", tensors_.all().begin()->first));
}

const StoredTensor& TowerSource::at(const std::string& name) const {
  const StoredTensor* const tensor = find(name);
  if (tensor == nullptr || tensor->shape.empty()) {
    throw data_error("{}: is no whole tower of volumes: missing: {}{}", place().string(), beginning_, name);
  }
  return *tensor;
}

void TowerSource::read_patch(ordered_json& config) const {
  const auto& shape = at(std::string(is_perceptron_ ? kPerceptron : kConvolution)).shape;
  std::optional<int64_t> patch;
  int64_t channels = config.value("num_channels", int64_t{1});
  if (is_perceptron_) {
    if (shape.size() == 2 && shape[1] % channels == 0) patch = cube_root(shape[1] / channels);
  } else if (shape.size() == 5 && shape[2] == shape[3] && shape[3] == shape[4]) {
    channels = shape[1];
    patch = shape[2];
  }
  if (!patch) {
    throw data_error("{}: {}{} is [{}], and patches are cubes of {} channels: [hidden, channels, patch, patch, patch]",
                     place().string(), beginning_, is_perceptron_ ? kPerceptron : kConvolution, fmt::join(shape, ", "),
                     channels);
  }
  config["hidden_size"] = shape[0];
  config["num_channels"] = channels;
  config["patch_size"] = *patch;
}

void TowerSource::read_positions(ordered_json& config, const std::optional<VolumeAxes>& volume_size) const {
  const auto patch = config["patch_size"].get<int64_t>();
  VolumeAxes size = volume_size.value_or(axes_of(config, "image_size", {96, 96, 96}, int64_t{1} << 14, "image_size"));
  if (const StoredTensor* const first_axis = find(std::string(kOneTable) + "_0")) {
    config["positions"] = "factorized";
    config["max_patches"] = {first_axis->shape.at(0), at(std::string(kOneTable) + "_1").shape.at(0),
                             at(std::string(kOneTable) + "_2").shape.at(0)};
    config["image_size"] = size;
    return;
  }
  const auto& table = at(std::string(kOneTable)).shape;
  const int64_t entries = table.size() == 3 ? table[1] : 0;
  const auto patches_of = [patch](const VolumeAxes& axes) {
    return (axes[0] / patch) * (axes[1] / patch) * (axes[2] / patch);
  };
  if (patches_of(size) != entries && !volume_size) {
    if (const auto side = cube_root(entries)) size.fill(*side * patch);
  }
  if (patches_of(size) != entries) {
    throw usage_error(
        "{}: has positions for {} patches of {} voxels on a side, and a volume of {} has {}; say with --volume-size of "
        "what volumes they are",
        place().string(), entries, patch, axes_words(size), patches_of(size));
  }
  config["positions"] = "learned";
  config.erase("max_patches");
  config["image_size"] = size;
}

ordered_json TowerSource::config(ordered_json preset, const TowerWishes& wishes) const {
  const auto preset_width = preset.value("hidden_size", int64_t{0});
  read_patch(preset);
  read_positions(preset, wishes.volume_size);
  const auto width = preset["hidden_size"].get<int64_t>();
  if (wishes.heads) {
    preset["num_attention_heads"] = *wishes.heads;
  } else if (width != preset_width) {
    if (width % kUsualHead != 0) {
      throw usage_error("{}: how many heads do {} features have? weights do not tell; give --tower-heads",
                        place().string(), width);
    }
    preset["num_attention_heads"] = width / kUsualHead;
  }
  if (width % preset["num_attention_heads"].get<int64_t>() != 0) {
    throw usage_error("{}: {} features do not divide into {} heads; give --tower-heads", place().string(), width,
                      preset["num_attention_heads"].get<int64_t>());
  }
  int64_t blocks = 0;
  while (tensors_.has_any(fmt::format("{}blocks.{}.", beginning_, blocks))) ++blocks;
  preset["num_hidden_layers"] = blocks;
  preset["intermediate_size"] = at("blocks.0.mlp.linear1.weight").shape[0];
  preset["qkv_bias"] = find("blocks.0.attn.qkv.bias") != nullptr;
  preset["class_token"] = find("cls_token") != nullptr;
  return preset;
}

std::optional<std::string> TowerSource::name_here(const nn::Parameter& parameter) const {
  if (!parameter.name.starts_with(kTower)) return std::nullopt;
  std::string name = parameter.name.substr(kTower.size());
  if (is_perceptron_ && name.starts_with("patch_embedding.patch_embeddings.")) {
    name.insert(name.rfind('.'), ".1");
  }
  return beginning_ + name;
}

std::vector<int64_t> TowerSource::shape_of(const nn::Parameter& parameter, const StoredTensor& tensor) const {
  const auto sizes = parameter.sizes();
  const bool is_linear = is_perceptron_ && sizes.size() == 5 && tensor.shape.size() == 2;
  const bool is_same =
      is_linear && tensor.shape[0] == sizes[0] && tensor.shape[0] * tensor.shape[1] == parameter.elements();
  return is_same ? sizes.vec() : tensor.shape;
}

void TowerSource::check(const std::vector<nn::Parameter>& parameters) const {
  std::vector<std::string> problems;
  std::set<std::string> wanted;
  for (nn::Parameter parameter : parameters) {
    const auto name = name_here(parameter);
    if (!name) continue;
    wanted.insert(*name);
    const StoredTensor* const tensor = tensors_.find(*name);
    if (tensor == nullptr) {
      // MONAI has no such table.
      if (!name->ends_with("modality_embeddings")) problems.push_back("missing: " + *name);
      continue;
    }
    const auto shape = shape_of(parameter, *tensor);
    parameter.name = *name;  // messages are of the file
    for (std::string problem : {dtype_problem(*name, tensor->dtype), shape_problem(parameter, shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  refuse_differences(fmt::format("{}: is no whole tower of volumes; fetch it again", place().string()), problems);
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : tensors_.all()) {
    if (!wanted.contains(name) && !is_never_run(name)) unexpected.push_back(name);
  }
  if (unexpected.empty()) return;
  const size_t count = unexpected.size();
  spdlog::warn("{}: {} tensors are of no use in a tower of volumes and are left out: {}", place().string(), count,
               fmt::join(shortened(std::move(unexpected)), ", "));
}

std::optional<io::LazyTensor> TowerSource::weight(const nn::Parameter& parameter) const {
  const auto name = name_here(parameter);
  const StoredTensor* const tensor = name ? tensors_.find(*name) : nullptr;
  if (tensor == nullptr) return std::nullopt;
  const auto shape = shape_of(parameter, *tensor);
  const bool is_as_here = shape == tensor->shape;
  // A perceptron's patch has the channels fastest.
  const auto as_convolution = [read = tensor->read, sizes = parameter.sizes().vec()] {
    return read().view({sizes[0], sizes[2], sizes[3], sizes[4], sizes[1]}).permute({0, 4, 1, 2, 3}).contiguous();
  };
  return io::LazyTensor{.name = parameter.name,
                        .dtype = tensor->dtype,
                        .shape = shape,
                        .make = is_as_here ? tensor->read : as_convolution,
                        .written = tensor->release};
}

}  // namespace vlmtrain::models::brain_llava
