#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "models/network/activation.h"
#include "models/network/llama.h"
#include "models/network/vision_transformer.h"

namespace vlmtrain::models::llava {

/// Author of a checkpoint: decides config keys, weight names and how text around images is
/// tokenized.
enum class Layout {
  kHuggingFace,  ///< transformers' LlavaForConditionalGeneration: sections vision_config and text_config
  kOriginal,     ///< LLaVA's and LLaVA-Med's own code: keys mm_*, the text model's at the top
};

enum class VisionTowerType { kClip, kSiglip };

/// `config.json` of LLaVA-1.5 (Liu et al. 2023, arXiv 2310.03744) and of models built like it.
struct Config {
  Layout layout = Layout::kHuggingFace;
  VisionTowerType tower = VisionTowerType::kClip;
  VisionTransformerConfig vision;
  LlamaConfig text;
  bool drop_first_row = true;  ///< of each tile's features: CLIP's class token
  Activation projector_activation = Activation::kGelu;
  bool projector_bias = true;
  std::optional<int64_t> image_token_id;  ///< the original layout has none: its tokenizer never receives an image
  bool pad_to_square = false;             ///< original layout: image_aspect_ratio pad
  std::filesystem::path tower_folder;     ///< original layout: folder of the tower's own checkpoint; empty: unknown
  std::string tower_name;                 ///< original layout: mm_vision_tower
  nlohmann::json vision_config;           ///< the tower's config as stored

  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);
  int64_t image_tokens() const { return vision.rows_per_tile() - (drop_first_row ? 1 : 0); }
};

}  // namespace vlmtrain::models::llava
