#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "models/network/llama.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::idefics3 {

/// `config.json` of Idefics3 and SmolVLM (Laurençon et al. 2024, arXiv 2408.12637; Marafioti et
/// al. 2025, arXiv 2504.05299). Both have the same modules and weight names.
struct Config {
  VisionTransformerConfig vision;
  LlamaConfig text;
  int64_t scale_factor = 2;  ///< pixel shuffle: scale_factor² adjacent patches become one image token
  int64_t image_token_id = 128257;

  /// Parses config.json. `source` names the file in errors. Throws UserError (kBadData) with the
  /// key.
  static Config from_json(const nlohmann::json& json, const std::string& source);
  int64_t image_tokens_per_tile() const {
    return vision.patches_per_side() * vision.patches_per_side() / (scale_factor * scale_factor);
  }
};

/// SigLIP tower, pixel-shuffle connector and Llama text model. Parameter names are those of
/// transformers.
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, image::Normalization normalization, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  Config config_;
  image::Normalization normalization_;
  VisionTransformer tower_;
  nn::Linear projection_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::idefics3
