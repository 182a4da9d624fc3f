#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "models/network/config.h"

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

}  // namespace vlmtrain::models::llava
