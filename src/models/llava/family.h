#pragma once

#include <functional>

#include "models/family.h"
#include "models/network/llama.h"
#include "models/processing/mask_input.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::llava {

// Shared functions of the families built on LLaVA; as in models::Family, with LLaVA's own
// `config_json`.

/// Loads the processor of `folder`. `make_mask_input`: makes the mask encoder's input of a model
/// that draws masks; null: the model draws none.
std::unique_ptr<models::Processor> load_processor(
    const nlohmann::json& config_json, const std::filesystem::path& folder, const ProcessorSettings& settings,
    const std::function<MaskInput(const text::Tokenizer&)>& make_mask_input);
data::SampleShape image_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                              image::ImageSize size, std::optional<int64_t> max_pixels);
/// Returns the name of the chat template that checkpoints of this text model were trained with.
std::string_view choose_fallback_template(const LlamaConfig& text);
ContextLength context_length(const nlohmann::json& config_json, const std::filesystem::path& folder);
double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder);

}  // namespace vlmtrain::models::llava
