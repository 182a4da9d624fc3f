#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Throws UserError (kBadData) where the weights in `folder` are quantized by another program: FP8, GPTQ, AWQ,
/// compressed-tensors, bitsandbytes, quanto, torchao, MXFP4 and others. They are recognized by quantization_config, by
/// the files that name a method, and by names and types of tensors alone. No key of LoadSettings allows them: without
/// their scales they are other weights. `config` is the content of `folder`/config.json.
void refuse_quantized_weights(const nlohmann::json& config, const std::filesystem::path& folder);

/// Returns the section of config.json that has a quantization_config: "quantization_config",
/// "text_config.quantization_config"; empty where none has.
std::string find_quantization_config(const nlohmann::json& config);

/// Removes it from every section. Returns whether there was one.
bool erase_quantization_config(nlohmann::ordered_json& config);

/// Throws UserError (kUsage), which names `out`, if the weights of `model` are quantized: they cannot be saved as a
/// checkpoint.
void refuse_quantized_model(const VisionLanguageModel& model, const std::filesystem::path& out);

}  // namespace vlmtrain::models
