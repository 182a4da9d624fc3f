#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <variant>

#include "models/llava/model.h"
#include "models/network/config.h"
#include "models/network/mask_decoder.h"
#include "models/network/mask_encoder.h"

namespace vlmtrain::models::prs_med {

/// `config.json` of a LLaVA that predicts masks (PRS-Med, Trinh et al. 2025, arXiv 2505.11872, with
/// the mask token of LISA, Lai et al. 2024, arXiv 2308.00692). The keys are LLaVA's, in any
/// format of llava::CheckpointFormat, and:
/// - `model_type`: "prs_med";
/// - `base_model_type`: LLaVA's model_type ("llava", "llava_mistral", "llava_llama");
/// - `mask_config`: {`image_size`, `mask_token`, `vision_encoder` (config of TinyViT with
/// `model_type` "tiny_vit", or of SAM's encoder with "sam_vision_model"), `mask_decoder` (config of
/// SAM's decoder)}.
struct Config {
  nlohmann::json llava_config;                        ///< make_llava_config() of the config.json
  int64_t image_size = 1024;                          ///< side of the mask encoder's square input, in pixels
  std::string mask_token = "<SEG>";                   ///< token in a response that stands for a mask
  std::variant<TinyVitConfig, SamVitConfig> encoder;  ///< of the mask model
  MaskDecoderConfig decoder;
  int64_t text_hidden_size = 0;  ///< of LLaVA's text model

  /// Parses `json`, the content of `folder`/config.json. Throws UserError (kBadData) with the key.
  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);

  /// Returns the side of the encoder's square input in pixels: `requested_side`
  /// (data.mask_image_size) if given, else image_size. Throws UserError (kUsage) for a side that
  /// the encoder does not support.
  int64_t side(std::optional<int64_t> requested_side) const;
  /// Returns the number of channels of the encoder's features, which the decoder expects, too.
  int64_t channels() const;
};

/// Returns the config.json of the LLaVA without its masks: `json`, the content of
/// `folder`/config.json, with model_type replaced by base_model_type and without mask_config.
/// Throws UserError (kBadData) if base_model_type is missing.
nlohmann::json make_llava_config(const nlohmann::json& json, const std::filesystem::path& folder);

/// Projector from the hidden state of a mask token to a prompt of the mask decoder: two Linears
/// with a ReLU between them.
class MaskPromptProjector {
 public:
  MaskPromptProjector(const nn::ParameterScope& scope, int64_t hidden_size, int64_t channels);
  /// Returns the prompts: [masks, hidden] → [masks, channels].
  at::Tensor operator()(const at::Tensor& hidden) const;

 private:
  nn::Linear linear_1_, linear_2_;
};

/// PRS-Med: LLaVA with a mask encoder of the image and SAM's mask decoder, which fuses the
/// encoder's features with the hidden states of the mask tokens by attention in both directions.
class Model final : public llava::Model {
 public:
  Model(const Config& config, llava::ModelSpec llava, const nn::ParameterSettings& settings);

  bool predicts_masks() const override { return true; }
  at::Tensor compute_mask_logits(const data::MaskBatch& masks, const at::Tensor& hidden,
                                 int64_t images_per_pass) const override;
  /// Returns the number of blocks of mask encoder and vision tower. The encoder's are recomputed
  /// first, since their activations are by far the largest.
  int64_t num_vision_blocks() const override { return encoder_->num_blocks() + llava::Model::num_vision_blocks(); }

 private:
  int64_t count_recomputed_tower_blocks() const override;
  /// Encodes pixels, uint8 [images, 3, side, side], at most `images_per_pass` images at a time (0:
  /// all).
  at::Tensor encode(const at::Tensor& pixels, int64_t images_per_pass) const;

  std::unique_ptr<MaskImageEncoder> encoder_;
  MaskDecoder decoder_;
  MaskPromptProjector prompt_projector_;
};

}  // namespace vlmtrain::models::prs_med
