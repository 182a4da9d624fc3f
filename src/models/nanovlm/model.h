#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/nanovlm/config.h"
#include "models/network/llama.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::nanovlm {

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
