#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Values for the three axes of a volume, in the order of its tensor dimensions x, y, z.
using VolumeShape = std::array<int64_t, 3>;

/// The position encoding of patches.
enum class VolumePositionEncoding {
  kLearned,     ///< one table with an entry per patch: volumes of one size only
  kFactorized,  ///< one table per axis, summed: volumes of any size within the tables
};

/// The `vision_config` of model_type vit_3d: a vision transformer for volumes with the structure
/// and parameter names of MONAI's `networks.nets.ViT` (Cardoso et al. 2022, arXiv 2211.02701).
struct VolumeTransformerConfig {
  VisionTransformerConfig block_config;  ///< settings of the blocks and the final norm; other members are ignored
  int64_t channels = 1;
  int64_t patch_size = 16;             ///< side of a cubic patch, in voxels
  VolumeShape image_size{96, 96, 96};  ///< in voxels, of the volumes in pretraining
  VolumePositionEncoding positions = VolumePositionEncoding::kLearned;
  VolumeShape max_patches{6, 6, 6};  ///< entries of the position tables along each axis
  bool has_class_token = false;      ///< a learned token before the patches, which is not in the output
  /// Names of the modalities with an embedding. Embedding i + 1 belongs to modalities[i], embedding
  /// 0 to unknown modalities. Empty: no modality embeddings.
  std::vector<std::string> modalities;

  /// Reads a `vision_config`. `source` names the file in errors. Throws UserError (kBadData).
  static VolumeTransformerConfig from_json(const nlohmann::json& json, const std::string& source);

  /// Returns `requested` in voxels (nullopt: image_size). Throws UserError (kUsage) for a size that
  /// the tower does not support.
  VolumeShape resolve_volume_size(const std::optional<VolumeShape>& requested) const;
  /// Returns the number of patches along each axis of a volume of `volume` voxels.
  VolumeShape compute_grid(const VolumeShape& volume) const;
  /// Estimates the number of parameters. Ignores biases, norms and modality embeddings.
  double num_parameters() const;
};

/// Returns a string such as "96x96x64".
std::string format_volume_shape(const VolumeShape& axes);

/// Returns the numbers under `key`: a list of three, or one number for all axes; `fallback` if
/// absent. `source` names the file in errors. Throws UserError (kBadData) if a number is not from 1
/// to `max`.
VolumeShape read_volume_shape(const nlohmann::json& json, std::string_view key, const VolumeShape& fallback,
                              int64_t max, const std::string& source);

/// A vision transformer for volumes. Each volume attends to itself only.
class VolumeTransformer {
 public:
  VolumeTransformer(const nn::ParameterScope& scope, const VolumeTransformerConfig& config);

  /// Encodes `volumes` [rows, channels, x, y, z] of the tower's dtype, in a size that
  /// config.resolve_volume_size() accepts, to features [rows · patches, hidden], volume by volume,
  /// with the last axis fastest and without the class token. The first `recomputed_blocks` blocks
  /// are recomputed in the backward pass. `modalities` is int64 [rows]; undefined: unknown.
  at::Tensor operator()(const at::Tensor& volumes, const at::Tensor& modalities, int64_t recomputed_blocks) const;
  int64_t num_blocks() const { return blocks_.size(); }
  /// Returns the number of patches along each axis of `volumes` [rows, channels, x, y, z].
  VolumeShape compute_grid(const at::Tensor& volumes) const;

 private:
  at::Tensor compute_position_embeddings(const VolumeShape& grid) const;
  at::Tensor embed(const at::Tensor& volumes, const at::Tensor& modalities, const VolumeShape& grid) const;

  VolumeTransformerConfig config_;
  at::Tensor patch_weight_, patch_bias_;     // of a convolution, [hidden, channels, patch, patch, patch]
  std::vector<at::Tensor> position_tables_;  // [1, patches, hidden], or per axis [max_patches, hidden]
  at::Tensor class_token_;                   // [1, 1, hidden]; undefined: none
  at::Tensor modality_embeddings_;           // [modalities + 1, hidden]; undefined: none
  BlockList<VisionBlock> blocks_;
  nn::LayerNorm norm_;
};

}  // namespace vlmtrain::models
