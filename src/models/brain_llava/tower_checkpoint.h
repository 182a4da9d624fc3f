#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "models/network/config.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::nn {
struct Parameter;  // nn/weights/parameters.h
}  // namespace vlmtrain::nn

namespace vlmtrain::models::brain_llava {

/// Settings of a volume tower that the shapes of its weights do not determine.
struct TowerOptions {
  std::optional<int64_t> num_heads = std::nullopt;        ///< --tower-heads; nothing: heads of 64 features
  std::optional<VolumeShape> volume_size = std::nullopt;  ///< --volume-size, in voxels; nothing: derived
};

/// Weights of a volume tower: a ViT of MONAI or a tower saved by vlmtrain. The tensor names are
/// MONAI's, such as blocks.0.attn.qkv.weight, with any prefix. The patch embedding is a convolution
/// or a Linear (MONAI's "conv" and "perceptron").
class TowerCheckpoint {
 public:
  /// Opens the weights at `path`, a file or folder. Throws UserError (kBadData) for other models
  /// and damaged files.
  explicit TowerCheckpoint(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return tensors_.path(); }
  /// Returns `preset`, a vision_config, with its sizes replaced by those of these weights. Without
  /// options.num_heads, keeps the preset's number of heads if the width is the preset's. Throws
  /// UserError: kUsage if a size must be given as an option, kBadData for missing or misshapen
  /// tensors.
  nlohmann::ordered_json config(nlohmann::ordered_json preset, const TowerOptions& options) const;
  /// Compares the tensors with `parameters`, the parameters of the new model; ignores those outside
  /// of the tower. Throws UserError (kBadData) with a list of missing tensors and of unsupported
  /// dtypes and shapes. Logs unused tensors.
  void check_weights(const std::vector<nn::Parameter>& parameters) const;
  /// Returns the stored weight for `parameter`, with the parameter's name and shape, in the stored
  /// dtype; nothing if it is not stored. The tensor is read when it is materialized, also after
  /// this object is destroyed. REQUIRES: check_weights() has accepted the parameter.
  std::optional<io::LazyTensor> find_weight(const nn::Parameter& parameter) const;

 private:
  const StoredTensor* find(const std::string& name) const { return tensors_.find(prefix_ + name); }
  /// Returns a tensor by MONAI's name. Throws UserError (kBadData) if it is missing or a scalar.
  const StoredTensor& at(const std::string& name) const;
  /// Returns the stored tensor's name; nothing for parameters outside of the tower.
  std::optional<std::string> find_stored_tensor_name(const nn::Parameter& parameter) const;
  /// Returns the parameter's shape if a stored Linear patch embedding can be reshaped to it, else
  /// the stored shape.
  std::vector<int64_t> find_loadable_shape(const nn::Parameter& parameter, const StoredTensor& tensor) const;
  /// Sets hidden_size, num_channels and patch_size.
  void set_patch_config_keys(nlohmann::ordered_json& config) const;
  /// Sets positions, max_patches and image_size. REQUIRES: set_patch_config_keys() was called.
  void set_position_config_keys(nlohmann::ordered_json& config, const std::optional<VolumeShape>& volume_size) const;

  TensorSource tensors_;
  std::string prefix_;  // of the stored names before MONAI's, such as "", "module." or "vision_tower."
  bool is_linear_patch_embedding_ = false;
};

}  // namespace vlmtrain::models::brain_llava
