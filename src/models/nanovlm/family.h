#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/network/config.h"

namespace vlmtrain::models::nanovlm {

/// `config.json` of nanoVLM (https://github.com/huggingface/nanoVLM), as its save_pretrained writes
/// it. All releases have the same modules. They differ in the position of image features among the
/// text, which depends on the keys below.
struct Config {
  VisionTransformerConfig vision;
  LlamaConfig text;
  int64_t scale_factor = 2;      ///< pixel shuffle: scale_factor² neighboring patches become one image feature
  int64_t max_positions = 8192;  ///< lm_max_position_embeddings, in tokens

  /// vlm_extra_tokens: role of a token ("image_token", "r1c1") → its text. Empty in release v0.1,
  /// which has no image token and inserts image features before the text.
  std::map<std::string, std::string> extra_tokens;
  std::optional<int64_t> max_image_side;  ///< maximum of the longer side, in pixels; nothing: one tile per image
  bool resize_to_max_side = false;        ///< enlarge smaller images to max_image_side
  std::string tokenizer_name;             ///< lm_tokenizer
  std::string chat_template;              ///< lm_chat_template, Jinja; may be empty

  /// Parses config.json. `source` names the file in errors. Throws UserError (kBadData) with the
  /// key.
  static Config from_json(const nlohmann::json& json, const std::string& source);

  bool puts_images_before_text() const { return extra_tokens.empty(); }
  bool has_global_image() const { return extra_tokens.contains("global_image_token"); }
  /// Returns the text of a token of vlm_extra_tokens. REQUIRES: it exists.
  const std::string& get_extra_token(const std::string& token_name) const { return extra_tokens.at(token_name); }
  int64_t image_tokens_per_tile() const { return vision.num_patches() / (scale_factor * scale_factor); }
};

/// Returns true if a config.json without `model_type` belongs to nanoVLM.
bool matches_config(const nlohmann::json& json);

/// Returns the texts of vlm_extra_tokens in `folder`/config.json, in file order, which is the order
/// of their ids.
std::vector<std::string> list_extra_tokens(const std::filesystem::path& folder);

}  // namespace vlmtrain::models::nanovlm
