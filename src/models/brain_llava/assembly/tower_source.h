#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "models/network/volume_transformer/volume_transformer_config.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models::brain_llava {

/// What the weights of a tower do not tell.
struct TowerWishes {
  std::optional<int64_t> heads = std::nullopt;
  std::optional<VolumeAxes> volume_size = std::nullopt;
};

/// The weights of MONAI's ViT, or of a tower that was saved here: names such as blocks.0.attn.qkv.weight, whatever
/// stands before them. Patch embeddings are a convolution's or ("perceptron") a Linear's.
class TowerSource {
 public:
  /// Throws UserError (kBadData) where it is no such tower, or damaged.
  explicit TowerSource(const std::filesystem::path& place);

  const std::filesystem::path& place() const { return tensors_.place(); }
  /// `preset`, a vision_config, with the sizes that this one has. Throws UserError (kUsage) where they cannot be told.
  nlohmann::ordered_json config(nlohmann::ordered_json preset, const TowerWishes& wishes) const;
  /// Throws UserError (kBadData) that lists what of `parameters` it has not, or of other shapes; logs what it has
  /// beside them.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// A parameter's weight, under the parameter's name; nothing for what it has not. REQUIRES: check() has passed it.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;

 private:
  const StoredTensor* find(const std::string& name) const { return tensors_.find(beginning_ + name); }
  const StoredTensor& at(const std::string& name) const;
  /// What it calls a parameter; nothing for one that is none of a tower's.
  std::optional<std::string> name_here(const nn::Parameter& parameter) const;
  /// Of a parameter's weight, as the parameter has it.
  std::vector<int64_t> shape_of(const nn::Parameter& parameter, const StoredTensor& tensor) const;
  void read_patch(nlohmann::ordered_json& config) const;
  void read_positions(nlohmann::ordered_json& config, const std::optional<VolumeAxes>& volume_size) const;

  TensorSource tensors_;
  std::string beginning_;  // what stands before MONAI's names: "", "module.", "vision_tower."
  bool is_perceptron_ = false;
};

}  // namespace vlmtrain::models::brain_llava
