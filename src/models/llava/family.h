#pragma once

#include <functional>

#include "models/family.h"
#include "models/media/mask_input.h"
#include "models/network/config.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::llava {

// Functions shared by the families built on LLaVA. `config_json` is a config.json of LLaVA (for
// prs_med: make_llava_config() of its config.json), `folder` the checkpoint's folder. All of them
// throw UserError (kBadData) for an invalid config.json.

/// Loads the processor of `folder`. `make_mask_input` returns the mask encoder's input of a model
/// that predicts masks; null for other models. Throws UserError: kUsage if
/// settings.image_max_pixels is less than the size that every image is resized to, kBadData for
/// missing or mismatching files.
std::unique_ptr<models::Processor> load_processor(
    const nlohmann::json& config_json, const std::filesystem::path& folder, const ProcessorSettings& settings,
    const std::function<MaskInputSettings(const text::Tokenizer&)>& make_mask_input);
/// Returns the token numbers and the input shape of an image with its markers. They do not depend
/// on `size`. `max_pixels` is data.image_max_pixels. Throws as load_processor().
data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels);
/// Returns the name of the chat template that checkpoints of this text model were trained with.
std::string_view choose_fallback_template(const LlamaConfig& text);
/// Returns the maximum number of tokens of a sequence. RoPE permits longer ones, so the limit is
/// not hard.
ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder);
/// Estimates the number of parameters of vision tower and text model.
double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder);

}  // namespace vlmtrain::models::llava
