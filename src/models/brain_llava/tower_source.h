#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "models/network/volume_transformer.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models::brain_llava {

/// What the weights of a tower do not tell.
struct TowerOptions {
  std::optional<int64_t> heads = std::nullopt;
  std::optional<VolumeAxes> volume_size = std::nullopt;
};

/// The weights of MONAI's ViT, or of a tower that was saved here: names such as blocks.0.attn.qkv.weight, whatever
/// stands before them. Patch embeddings are a convolution's or ("perceptron") a Linear's.
class TowerSource {
 public:
  /// Throws UserError (kBadData) where it is no such tower, or damaged.
  explicit TowerSource(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return tensors_.path(); }
  /// `preset`, a vision_config, with the sizes that this one has. Throws UserError (kUsage) where they cannot be told.
  nlohmann::ordered_json config(nlohmann::ordered_json preset, const TowerOptions& options) const;
  /// Throws UserError (kBadData) that lists what of `parameters` it has not, or of other shapes; logs what it has
  /// beside them.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// A parameter's weight, under the parameter's name; nothing for what it has not. REQUIRES: check() has passed it.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;

 private:
  const StoredTensor* find(const std::string& name) const { return tensors_.find(prefix_ + name); }
  const StoredTensor& at(const std::string& name) const;
  /// What it calls a parameter; nothing for one that is none of a tower's.
  std::optional<std::string> find_stored_name(const nn::Parameter& parameter) const;
  /// Of a parameter's weight, as the parameter has it.
  std::vector<int64_t> get_parameter_shape(const nn::Parameter& parameter, const StoredTensor& tensor) const;
  void set_patch_config(nlohmann::ordered_json& config) const;
  void set_position_config(nlohmann::ordered_json& config, const std::optional<VolumeAxes>& volume_size) const;

  TensorSource tensors_;
  std::string prefix_;  // what stands before MONAI's names: "", "module.", "vision_tower."
  bool is_linear_patch_ = false;
};

}  // namespace vlmtrain::models::brain_llava
