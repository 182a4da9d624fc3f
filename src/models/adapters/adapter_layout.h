#pragma once

#include <filesystem>
#include <string_view>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::models {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";
/// What PEFT puts before a module's path, and an adapter's parameters after it.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";
inline constexpr std::string_view kLoraA = "lora_A.weight";
inline constexpr std::string_view kLoraB = "lora_B.weight";
inline constexpr std::string_view kMagnitude = "lora_magnitude_vector";  ///< DoRA's

/// An adapter's tensors. Throws UserError (kBadData) where there are none, or only pickled ones.
io::SafetensorsFile open_adapter(const std::filesystem::path& folder);
}  // namespace vlmtrain::models
