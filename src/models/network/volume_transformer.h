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
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// Numbers of a volume's three axes, in the order of its pixels.
using VolumeAxes = std::array<int64_t, 3>;

/// How a tower of volumes knows where a patch lies.
enum class VolumePositions {
  kLearned,     ///< one table, an entry a patch: volumes of one size only
  kFactorized,  ///< a table an axis, whose entries are summed up: volumes of any size that the tables reach
};

/// `vision_config` of model_type vit_3d: a vision transformer of volumes, built as MONAI's `networks.nets.ViT` (Cardoso
/// et al. 2022, arXiv 2211.02701), whose names its parameters have.
struct VolumeTransformerConfig {
  VisionTransformerConfig blocks;  ///< sizes of the blocks and of the norm behind them; the rest of it is not read
  int64_t channels = 1;
  int64_t patch_size = 16;            ///< voxels on each side
  VolumeAxes image_size{96, 96, 96};  ///< voxels of the volumes that it was made for
  VolumePositions positions = VolumePositions::kLearned;
  VolumeAxes max_patches{6, 6, 6};      ///< that the tables of positions reach, on each axis
  bool class_token = false;             ///< one before the patches, which is no feature
  std::vector<std::string> modalities;  ///< entry i + 1 of a table whose entry 0 is of unknown ones; empty: no table

  /// `source` names the file in errors. Throws UserError (kBadData).
  static VolumeTransformerConfig from_json(const nlohmann::json& json, const std::string& source);

  /// The size of the volumes where `requested` is asked for. Throws UserError (kUsage) where the tower cannot take it.
  VolumeAxes volume_size(const std::optional<VolumeAxes>& requested) const;
  /// Patches on each axis of a volume of this size.
  VolumeAxes compute_grid(const VolumeAxes& volume) const;
  /// About how many parameters it has.
  double num_parameters() const;
};

/// "96x96x64".
std::string format_axes(const VolumeAxes& axes);

/// Three numbers, or one for all, under `key`, each from 1 to `max`; `fallback` where it is absent. `source` names the
/// file in errors. Throws UserError (kBadData).
VolumeAxes read_axes(const nlohmann::json& json, std::string_view key, const VolumeAxes& fallback, int64_t max,
                     const std::string& source);

/// The vision transformer of volumes. Each volume is seen alone.
class VolumeTransformer {
 public:
  VolumeTransformer(const nn::ParameterScope& scope, const VolumeTransformerConfig& config);

  /// `volumes` [rows, channels, x, y, z] of the tower's dtype, of a size that config.volume_size() takes; `modalities`
  /// int64 [rows], undefined: none is known → [rows · patches, hidden], volume by volume, the patches with the last
  /// axis fastest.
  at::Tensor operator()(const at::Tensor& volumes, const at::Tensor& modalities, int64_t recomputed_blocks) const;
  int64_t blocks() const { return blocks_.size(); }
  /// Patches on each axis of such volumes.
  VolumeAxes compute_grid(const at::Tensor& volumes) const;

 private:
  at::Tensor compute_positions(const VolumeAxes& grid) const;
  at::Tensor embed(const at::Tensor& volumes, const at::Tensor& modalities, const VolumeAxes& grid) const;

  VolumeTransformerConfig config_;
  at::Tensor patch_weight_, patch_bias_;  // a convolution's [hidden, channels, patch, patch, patch]; stride = kernel
  std::vector<at::Tensor> positions_;     // [1, patches, hidden], or of each axis [most patches, hidden]
  at::Tensor class_token_;                // [1, 1, hidden]; undefined: none
  at::Tensor modality_embeddings_;        // [modalities + 1, hidden]; undefined: none
  BlockList<VisionBlock> blocks_;
  nn::LayerNorm norm_;
};

}  // namespace vlmtrain::models
