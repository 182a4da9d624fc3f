#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

#include "models/network/gemma/gemma_config.h"

namespace vlmtrain::models::gemma4 {

/// The variants of the text model.
enum class GemmaVersion : uint8_t {
  k4,         ///< gemma4_text
  k4Unified,  ///< gemma4_unified_text, of the model without a tower
};

/// Parses a `text_config` with transformers' defaults. `source` names file and section in errors.
/// Throws UserError (kBadData) with the key for invalid and unsupported values.
GemmaConfig read_text_config(const nlohmann::json& text, GemmaVersion version, const std::string& source);

/// Throws UserError (kBadData) if the `hidden_activation` of a section is not the one of Gemma.
void check_gemma4_activation(const nlohmann::json& section, const std::string& source);

}  // namespace vlmtrain::models::gemma4
