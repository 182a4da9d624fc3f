#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "models/network/config.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::models::brain_llava {

inline constexpr std::string_view kModelType = "brain_llava";
inline constexpr std::string_view kTowerType = "vit_3d";

/// `config.json` of a LLaVA (Liu et al. 2023, arXiv 2310.03744) whose images are volumes. As in M3D
/// (Bai et al. 2024, arXiv 2404.00578), pooling reduces the grid of patches to few tokens:
/// - `model_type`: "brain_llava";
/// - `vision_config`: {`model_type` "vit_3d", `hidden_size`, `intermediate_size`,
/// `num_hidden_layers`, `num_attention_heads`, `num_channels`, `image_size` (one number or three),
/// `patch_size`, `positions` ("learned" or "factorized", with `max_patches`, one number or three),
/// `class_token`, `qkv_bias`, `modalities` (names)};
/// - `projector_config`: {`tokens` (tokens per volume along each axis, one number or three),
/// `hidden_act`};
/// - `text_config`: a Llama, Mistral or Qwen2;
/// - `image_token_id`: id of the token whose embedding is replaced by a volume's feature;
/// - `max_volumes`: maximum number of volumes per sample, optional.
struct Config {
  VolumeTransformerConfig vision;
  VolumeShape tokens{4, 4, 4};  ///< per volume, along each axis
  Activation projector_activation = Activation::kGelu;
  LlamaConfig text;
  int64_t image_token_id = 0;
  std::optional<int64_t> max_volumes;  ///< maximum per sample; nothing: no limit

  /// Parses `json`, the content of `folder`/config.json. Throws UserError (kBadData) with the file
  /// and the key.
  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);

  /// Returns the volume size in voxels along each axis: `requested` (data.volume.size) if given,
  /// else image_size of the config. Throws UserError (kUsage) for an unsupported size.
  VolumeShape resolve_volume_size(const std::optional<VolumeShape>& requested) const;
  /// Returns the shape and dtype of the tower's input for a volume of
  /// resolve_volume_size(requested). Throws as resolve_volume_size().
  data::PixelRowShape make_pixel_row_shape(const std::optional<VolumeShape>& requested, at::ScalarType dtype) const;
  int64_t tokens_per_volume() const { return tokens[0] * tokens[1] * tokens[2]; }
};

}  // namespace vlmtrain::models::brain_llava
