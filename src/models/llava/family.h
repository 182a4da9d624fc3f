#pragma once

#include <functional>

#include "models/family.h"
#include "models/network/llama.h"
#include "models/processing/mask_input.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::llava {

// What families that are built on LLaVA share with it: as Family's, with `config_json` as LLaVA's own.

/// `make_mask_input`: what a model that draws masks takes beside; null: it draws none.
std::unique_ptr<models::Processor> load_processor(
    const nlohmann::json& config_json, const std::filesystem::path& folder, const ProcessorSettings& settings,
    const std::function<MaskInput(const text::Tokenizer&)>& make_mask_input);
data::SampleShape image_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                              image::ImageSize size, std::optional<int64_t> max_pixels);
/// The template of the table that such a text model was taught with.
std::string_view choose_fallback_template(const LlamaConfig& text);
ContextLength context_length(const nlohmann::json& config_json, const std::filesystem::path& folder);
double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder);

}  // namespace vlmtrain::models::llava
