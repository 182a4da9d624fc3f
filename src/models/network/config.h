#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/layers.h"
#include "models/network/rope.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/mixers/gated_delta_shape.h"

// The configurations of the networks that the model families share.

namespace vlmtrain::models {

/// The supported `model_type` of a text model.
enum class TextModelType { kLlama, kMistral, kQwen2, kQwen3, kQwen35, kSmolLm3 };

/// The sequence mixer of a text block.
enum class MixerType : uint8_t { kAttention, kDeltaNet };

/// The module names in a checkpoint; the defaults are transformers'.
struct LlamaModuleNames {
  std::string_view embedding = "embed_tokens";
  std::string_view blocks = "layers";
  std::string_view attention = "self_attn", attention_output = "o_proj";
  std::string_view input_norm = "input_layernorm", post_attention_norm = "post_attention_layernorm";
};

/// The configuration of a Llama decoder (Touvron et al. 2023, arXiv 2302.13971) with grouped-query
/// attention, or of one of its variants: Mistral (Jiang et al. 2023, arXiv 2310.06825) has a
/// sliding window. Qwen2 (Yang et al. 2024, arXiv 2407.10671) has biases of query, key and value.
/// Qwen3 (Yang et al. 2025, arXiv 2505.09388) has QK-norm. SmolLM3 (Bakouch et al. 2025,
/// https://huggingface.co/blog/smollm3) has blocks without RoPE (NoPE, arXiv 2501.18795). Qwen3.5
/// (Qwen Team 2026; transformers' qwen3_5) has gated delta nets in three of four blocks, output gates
/// of the attention, partial RoPE and norms with gain 1 + weight.
struct LlamaConfig {
  TextModelType type = TextModelType::kLlama;
  int64_t vocab_size = 32000;
  int64_t max_positions = 2048;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_layers = 32;
  int64_t num_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t head_dim = 128;
  double rms_norm_eps = 1e-6;
  RopeConfig rope = {};
  std::vector<bool> uses_rope = {};                      ///< of each block; empty: all blocks do
  std::optional<int64_t> sliding_window = std::nullopt;  ///< tokens that a token attends to, itself included
  std::vector<MixerType> mixers = {};                    ///< of each block; empty: attention in all
  nn::GatedDeltaShape delta_net = {};                    ///< of all gated delta nets
  nn::NormGain norm_gain = nn::NormGain::kWeight;        ///< of all norms
  bool qk_norm = false;
  bool attention_output_gate = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  LlamaModuleNames names = {};

  /// Reads a config with `model_type` llama (the default), mistral, qwen2, qwen3, qwen3_5_text or
  /// smollm3, with transformers' defaults of that type. `source` names the file in errors.
  static LlamaConfig from_json(const nlohmann::json& config, const std::string& source);

  /// Returns the mixer of a block.
  MixerType get_mixer(int64_t block) const;
  /// Returns whether some blocks have a gated delta net.
  bool has_delta_nets() const;
  /// Returns whether some blocks have no RoPE.
  bool has_blocks_without_rope() const;
  /// Estimates the number of parameters. Counts matrices only, and the output projection even if it
  /// is tied.
  double num_parameters() const;
};

/// The order in which patches are mapped to rows of the position table.
enum class PatchPositionOrder {
  kSequential,  ///< row i for patch i
  kBucketed,    ///< by rounded fractions of the tile's side, as in Idefics3
};

/// The module names in a checkpoint; the defaults are transformers'.
struct VisionTransformerModuleNames {
  std::string_view patch_embedding = "embeddings.patch_embedding";
  std::string_view position_embedding = "embeddings.position_embedding.weight";
  std::string_view blocks = "encoder.layers";
  std::string_view norm1 = "layer_norm1", norm2 = "layer_norm2";
  std::string_view attention = "self_attn", qkv = "qkv_proj";  ///< `qkv` names the fused projection
  std::string_view fc1 = "mlp.fc1", fc2 = "mlp.fc2";
  std::string_view post_layernorm = "post_layernorm";
};

/// The configuration of a vision transformer with pre-norm blocks (Dosovitskiy et al. 2020, arXiv
/// 2010.11929). It covers SigLIP and CLIP.
struct VisionTransformerConfig {
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t image_size = 224;
  int64_t patch_size = 16;
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kGeluTanh;
  PatchPositionOrder positions = PatchPositionOrder::kSequential;
  bool has_class_token = false;    ///< a learned token before the patches
  bool has_patch_bias = true;      ///< whether the patch embedding has a bias
  bool has_pre_layernorm = false;  ///< a norm before the first block
  bool has_pooling_head = false;   ///< SigLIP's head after the final norm; its weights are kept but not used
  bool has_fused_qkv = false;      ///< one Linear for query, key and value, in this order
  bool qkv_bias = true;
  bool has_batched_position_embedding = false;  ///< the position table has a leading dimension of 1
  VisionTransformerModuleNames names = {};

  /// Number of blocks to run. The output of the last one is returned without the final norm.
  /// If unset: all blocks and the final norm run. Weights of other blocks are kept, so that a saved
  /// checkpoint is complete.
  std::optional<int64_t> num_feature_blocks = std::nullopt;

  /// Reads sizes and activation under transformers' keys. Absent values are taken from `defaults`.
  /// `source` names the file in errors.
  static VisionTransformerConfig from_json(const nlohmann::json& config, const VisionTransformerConfig& defaults,
                                           const std::string& source);

  /// Estimates the number of parameters.
  double num_parameters() const;

  int64_t patches_per_side() const { return image_size / patch_size; }
  int64_t num_patches() const { return patches_per_side() * patches_per_side(); }
  /// Returns the number of output rows per tile.
  int64_t num_positions() const { return num_patches() + (has_class_token ? 1 : 0); }
};

/// Returns the configuration of CLIP's vision transformer (Radford et al. 2021, arXiv 2103.00020)
/// from a `vision_config` of model_type clip_vision_model, with transformers' defaults. `source`
/// names the file in errors.
VisionTransformerConfig read_clip_config(const nlohmann::json& config, const std::string& source);

/// Returns the configuration of the SigLIP vision transformer (Zhai et al. 2023, arXiv 2303.15343)
/// from a `vision_config` of model_type siglip_vision_model, with transformers' defaults. `source`
/// names the file in errors.
VisionTransformerConfig read_siglip_config(const nlohmann::json& config, const std::string& source);

/// Returns the configuration of Idefics3's variant of SigLIP, with bucketed positions, no pooling
/// head, and transformers' defaults. `source` names the file in errors.
VisionTransformerConfig read_idefics3_vision_config(const nlohmann::json& config, const std::string& source);

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

/// Pixels per feature of a mask encoder along an image's side.
inline constexpr int64_t kMaskFeatureStride = 16;

/// The configuration of SAM's image encoder. The defaults are those of ViT-B.
struct SamVitConfig {
  int64_t hidden_size = 768;
  int64_t output_channels = 256;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t image_size = 1024;
  int64_t patch_size = 16;
  int64_t mlp_dim = 3072;
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kGelu;
  bool qkv_bias = true;
  bool uses_absolute_positions = true;
  bool uses_relative_positions = true;
  int64_t window_size = 14;                                      ///< side of the attention windows, in patches
  std::vector<int64_t> global_attention_blocks = {2, 5, 8, 11};  ///< blocks with attention over the full image

  /// Reads transformers' SamVisionConfig. `source` names the file in errors.
  static SamVitConfig from_json(const nlohmann::json& config, const std::string& source);

  /// Estimates the number of parameters.
  double num_parameters() const;

  /// Returns the number of patches along an image's side.
  int64_t patches_per_side() const { return image_size / patch_size; }
  /// Returns the window size of a block; 0: attention over the full image.
  int64_t get_window_size(int64_t block) const;
};

/// A stage of TinyViT: blocks of one width. The first stage is convolutional, without heads and
/// windows.
struct TinyVitStage {
  int64_t width = 0;  ///< channels
  int64_t num_blocks = 0;
  int64_t num_heads = 1;
  int64_t window = 1;  ///< side of the attention windows, in positions
};

/// The configuration of a TinyVit; the defaults are MobileSAM's, with 6 million parameters.
struct TinyVitConfig {
  std::vector<TinyVitStage> stages{{64, 2, 2, 7}, {128, 2, 4, 7}, {160, 6, 5, 14}, {320, 2, 10, 7}};
  double mlp_ratio = 4;            ///< hidden features of an MLP per channel
  double mbconv_expand_ratio = 4;  ///< inner channels of an MBConv per channel
  int64_t local_conv_size = 3;     ///< kernel of the depthwise convolution in a TinyVitBlock
  /// Whether the last merging only widens, as in MobileSAM. In the original TinyViT it also halves
  /// height and width.
  bool last_merging_keeps_size = true;
  int64_t image_size = 1024;
  int64_t out_channels = 256;

  /// Reads the keys of the original code: image_size, embed_dims, depths, num_heads and
  /// window_sizes (one entry per stage), mlp_ratio, mbconv_expand_ratio, local_conv_size; also
  /// last_merging_keeps_size and out_channels. Throws UserError (kBadData) for invalid values and
  /// if the stride of the encoder is not kMaskFeatureStride. `source` names the file
  /// in errors.
  static TinyVitConfig from_json(const nlohmann::json& json, const std::string& source);

  /// Returns whether the merging after a stage halves height and width. REQUIRES: it is not the
  /// last stage.
  bool has_downsampling(size_t stage) const { return !last_merging_keeps_size || stage + 2 < stages.size(); }
  int64_t stride() const;         ///< pixels per feature along an image's side
  int64_t num_blocks() const;     ///< blocks of all stages, without mergings
  double num_parameters() const;  ///< estimate
  /// Returns the hidden features of an MLP, or the inner channels of an MBConv, in a stage of
  /// `width` channels. Rounded down.
  int64_t compute_mlp_width(int64_t width) const { return scale_width(width, mlp_ratio); }
  int64_t compute_expanded_channels(int64_t width) const { return scale_width(width, mbconv_expand_ratio); }

 private:
  static int64_t scale_width(int64_t width, double ratio) {
    return static_cast<int64_t>(static_cast<double>(width) * ratio);  // rounded down
  }
};

/// The configuration of a TwoWayTransformer.
struct TwoWayTransformerConfig {
  int64_t hidden_size = 256;
  int64_t mlp_dim = 2048;
  int64_t num_layers = 2;
  int64_t num_heads = 8;
  int64_t attention_downsample_rate = 2;  ///< hidden_size / width of cross-attention
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kRelu;
};

/// The configuration of SAM's mask decoder. All published checkpoints have the default values.
struct MaskDecoderConfig {
  TwoWayTransformerConfig transformer = {};
  int64_t num_mask_tokens = 4;  ///< tokens of masks, of which only the first is used

  int64_t hidden_size() const { return transformer.hidden_size; }

  /// Reads transformers' SamMaskDecoderConfig. `source` names the file in errors.
  static MaskDecoderConfig from_json(const nlohmann::json& config, const std::string& source);

  /// Estimates the number of parameters.
  double num_parameters() const;
};

}  // namespace vlmtrain::models
