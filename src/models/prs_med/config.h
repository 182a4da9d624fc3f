#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>

#include "models/network/config.h"

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

}  // namespace vlmtrain::models::prs_med
