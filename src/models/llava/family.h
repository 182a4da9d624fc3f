#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "models/family.h"
#include "models/media/mask_input.h"
#include "models/network/config.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::llava {

/// Format of a checkpoint: its config keys, its weight names and the tokenization of text around
/// images.
enum class CheckpointFormat {
  kHuggingFace,  ///< transformers' LlavaForConditionalGeneration: sections vision_config and text_config
  kOriginal,     ///< original code of LLaVA and LLaVA-Med: keys mm_*, the text model's keys at the top level
};

enum class VisionTowerType { kClip, kSiglip };

/// `config.json` of LLaVA-1.5 (Liu et al. 2023, arXiv 2310.03744) and of models with its
/// architecture.
struct Config {
  CheckpointFormat checkpoint_format = CheckpointFormat::kHuggingFace;
  VisionTowerType tower_type = VisionTowerType::kClip;
  VisionTransformerConfig vision;
  LlamaConfig text;
  bool drops_first_feature = true;  ///< drop the first feature of each tile, CLIP's class token
  Activation projector_activation = Activation::kGelu;
  bool projector_bias = true;
  std::optional<int64_t> image_token_id;  ///< nothing in the original format, whose tokenizer has no image token
  bool pad_to_square = false;             ///< original format: image_aspect_ratio is "pad"
  std::filesystem::path tower_folder;     ///< original format: mm_vision_tower if it is a folder, else empty
  std::string tower_name;                 ///< original format: mm_vision_tower
  nlohmann::json vision_config;           ///< the tower's config as stored

  /// Parses `json`, the content of `folder`/config.json, and for the original format the
  /// config.json of the tower's folder. Relative paths in it start at `folder`. Throws UserError
  /// (kBadData) with the key.
  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);
  /// Returns the number of tokens per image.
  int64_t tokens_per_image() const { return vision.num_positions() - (drops_first_feature ? 1 : 0); }
};

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
