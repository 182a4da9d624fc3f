#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

/// Throws UserError (kBadData) if the weights in `folder` are quantized by another program: FP8,
/// GPTQ, AWQ, compressed-tensors, bitsandbytes, quanto, torchao, MXFP4 and others. Detects them by
/// quantization_config, by config files of quantization programs, and by names and dtypes of
/// tensors. LoadSettings cannot permit them, since quantized values without their scales are not
/// the weights. `config` is the content of `folder`/config.json.
void reject_quantized_weights(const nlohmann::json& config, const std::filesystem::path& folder);

/// Returns the key of a quantization_config in config.json: "quantization_config" or
/// "text_config.quantization_config"; empty if the model is not quantized.
std::string find_quantization_config(const nlohmann::json& config);

/// Removes quantization_config from all sections. Returns whether there was one.
bool erase_quantization_config(nlohmann::ordered_json& config);

/// Throws UserError (kUsage) if the weights of `model` are quantized, since they cannot be saved as
/// a checkpoint. `out` is named in the message.
void reject_quantized_model(const VisionLanguageModel& model, const std::filesystem::path& out);

}  // namespace vlmtrain::models
