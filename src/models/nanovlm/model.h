#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/network/llama.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/models/model.h"

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

/// nanoVLM: SigLIP tower, pixel shuffle, one Linear and a Llama text model. Parameter names are
/// those of nanoVLM's modules.
class Model final : public VisionLanguageModel {
 public:
  /// Builds the model. `tensors` are the tensor names of the checkpoint; empty without a
  /// checkpoint.
  Model(Config config, const std::vector<std::string>& tensors, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }
  std::string get_checkpoint_tensor_name(const std::string& parameter) const override;
  void add_saved_settings(nlohmann::ordered_json& config) const override;
  void add_computed_tables(std::vector<std::pair<std::string, at::Tensor>>& weights) const override;

 private:
  Config config_;
  bool stores_tied_weight_as_output_;  // the checkpoint has the tied embedding under the output projection's name
  VisionTransformer tower_;
  nn::Linear projection_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::nanovlm
