#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>

#include "models/network/mask_decoder.h"
#include "models/network/sam_vit.h"
#include "models/network/tiny_vit.h"

namespace vlmtrain::models::prs_med {

/// `config.json` of a LLaVA that draws masks (PRS-Med, Trinh et al. 2025, arXiv 2505.11872, with
/// the mask token of LISA, Lai et al. 2024, arXiv 2308.00692): LLaVA's own keys in either of its
/// layouts, with
/// - `model_type`: "prs_med";
/// - `base_model_type`: LLaVA's model_type ("llava", "llava_mistral", "llava_llama");
/// - `mask_config`: {`image_size`, `mask_token`, `vision_encoder`: TinyViT's (`model_type`
/// "tiny_vit") or SAM's ("sam_vision_model"), `mask_decoder`: SAM's}.
struct Config {
  nlohmann::json llava;  ///< LLaVA's own config.json
  int64_t image_size = 1024;
  std::string mask_token = "<SEG>";
  std::variant<TinyVitConfig, SamVitConfig> encoder;
  MaskDecoderConfig decoder;
  int64_t text_hidden_size = 0;

  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);

  /// Returns the side, in pixels, of the encoder's square input for `requested_side` (nothing: the
  /// config's). Throws UserError (kUsage) for a side that the encoder does not support.
  int64_t side(std::optional<int64_t> requested_side) const;
  /// Returns the channels of the encoder's features and of the decoder.
  int64_t channels() const;
};

/// Returns LLaVA's own config.json from the config.json of this family.
nlohmann::json make_llava_config(const nlohmann::json& json, const std::filesystem::path& folder);

}  // namespace vlmtrain::models::prs_med
