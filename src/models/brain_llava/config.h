#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "models/network/activation.h"
#include "models/network/llama.h"
#include "models/network/volume_transformer.h"

namespace vlmtrain::models::brain_llava {

inline constexpr std::string_view kModelType = "brain_llava";
inline constexpr std::string_view kTowerType = "vit_3d";

/// `config.json` of a LLaVA (Liu et al. 2023, arXiv 2310.03744) whose images are volumes, with
/// M3D's reduction of patches to few tokens, a pooling of the grid (Bai et al. 2024, arXiv
/// 2404.00578):
/// - `model_type`: "brain_llava";
/// - `vision_config`: {`model_type` "vit_3d", `hidden_size`, `intermediate_size`,
/// `num_hidden_layers`, `num_attention_heads`, `num_channels`, `image_size` (one number or three),
/// `patch_size`, `positions` ("learned" or "factorized", with `max_patches`, one number or three),
/// `class_token`, `qkv_bias`, `modalities` (names)};
/// - `projector_config`: {`tokens` of a volume on each axis (one number or three), `hidden_act`};
/// - `text_config`: a Llama, Mistral or Qwen2;
/// - `image_token_id`: token that is replaced by a feature;
/// - `max_volumes`: largest number per sample, optional.
struct Config {
  VolumeTransformerConfig vision;
  VolumeAxes tokens{4, 4, 4};  ///< tokens of a volume along each axis
  Activation projector_activation = Activation::kGelu;
  LlamaConfig text;
  int64_t image_token_id = 0;
  std::optional<int64_t> max_volumes;  ///< per sample; nothing: no limit

  /// Parses config.json. Throws UserError (kBadData), which names file and key.
  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);

  /// Returns the volume size for `requested` (data.volume.size; nothing: the config's). Throws
  /// UserError (kUsage) for an unsupported size.
  VolumeAxes volume_size(const std::optional<VolumeAxes>& requested) const;
  /// Returns the tower's input for such a volume. Throws as volume_size().
  data::PixelRow row(const std::optional<VolumeAxes>& requested, at::ScalarType dtype) const;
  int64_t tokens_per_volume() const { return tokens[0] * tokens[1] * tokens[2]; }
};

}  // namespace vlmtrain::models::brain_llava
