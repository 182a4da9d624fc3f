#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "models/llava/model.h"
#include "models/network/config.h"
#include "models/network/llama.h"
#include "models/network/volume_transformer.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/models/model.h"

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

/// Returns the matrix [tokens, patches] whose product with a volume's patches equals PyTorch's
/// adaptive_avg_pool3d, with dtype and device of `options`. The product has a fixed summation
/// order, unlike the backward pass of adaptive_avg_pool3d. `tokens` and `patches` are numbers along
/// each axis. REQUIRES: at most as many tokens as patches along each axis.
at::Tensor make_pooling_matrix(const VolumeShape& tokens, const VolumeShape& patches, const at::TensorOptions& options);

/// Averages the patches of each volume: `features` [volumes · patches, hidden] → [volumes · tokens,
/// hidden], with tokens and patches per volume.
at::Tensor pool_patches(const at::Tensor& features, const VolumeShape& tokens, const VolumeShape& patches);

/// Model of a volume tower, pooling of its patches, LLaVA's projector and a text model. Its pixel
/// values are float or half [volumes, channels, x, y, z]; they are normalized when a volume is
/// read.
class Model final : public VisionLanguageModel {
 public:
  Model(const Config& config, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  Config config_;
  VolumeTransformer tower_;
  llava::Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::brain_llava
