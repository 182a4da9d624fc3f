#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/network/vision_transformer/vision_transformer.h"

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

}  // namespace vlmtrain::models
