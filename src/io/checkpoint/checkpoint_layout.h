#pragma once

#include <string_view>

namespace vlmtrain::io {

// File names of transformers.utils: SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME,
// WEIGHTS_INDEX_NAME.
constexpr std::string_view kWeightsName = "model.safetensors";
constexpr std::string_view kWeightsIndexName = "model.safetensors.index.json";
constexpr std::string_view kPickledWeightsName = "pytorch_model.bin";
constexpr std::string_view kPickledWeightsIndexName = "pytorch_model.bin.index.json";

}  // namespace vlmtrain::io
