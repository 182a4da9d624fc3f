#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "models/network/volume_transformer.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::brain_llava {

/// The settings of a tower that its weights do not determine.
struct TowerOptions {
  std::optional<int64_t> heads = std::nullopt;
  std::optional<VolumeAxes> volume_size = std::nullopt;
};

/// The weights of MONAI's ViT, or of a tower saved by this program: names such as
/// blocks.0.attn.qkv.weight with any prefix. The patch embedding is a convolution or a Linear
/// ("perceptron").
class TowerSource {
 public:
  /// Opens the weights. Throws UserError (kBadData) for other models and damaged files.
  explicit TowerSource(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return tensors_.path(); }
  /// Returns the vision_config `preset` with the sizes of these weights. Throws UserError (kUsage)
  /// if they cannot be determined.
  nlohmann::ordered_json config(nlohmann::ordered_json preset, const TowerOptions& options) const;
  /// Throws UserError (kBadData), which lists missing tensors of `parameters` and shape mismatches.
  /// Logs unused tensors.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// Returns a parameter's weight under its name; nothing if absent. REQUIRES: check() has accepted
  /// the parameter.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;

 private:
  const StoredTensor* find(const std::string& name) const { return tensors_.find(prefix_ + name); }
  const StoredTensor& at(const std::string& name) const;
  /// Returns the stored name of a parameter; nothing for parameters outside of the tower.
  std::optional<std::string> find_stored_name(const nn::Parameter& parameter) const;
  /// Returns the shape that a stored tensor has as the parameter.
  std::vector<int64_t> get_parameter_shape(const nn::Parameter& parameter, const StoredTensor& tensor) const;
  void set_patch_config(nlohmann::ordered_json& config) const;
  void set_position_config(nlohmann::ordered_json& config, const std::optional<VolumeAxes>& volume_size) const;

  TensorSource tensors_;
  std::string prefix_;  // before MONAI's names: "", "module.", "vision_tower."
  bool is_linear_patch_ = false;
};

}  // namespace vlmtrain::models::brain_llava
