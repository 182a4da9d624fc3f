#include "models/gemma3/model.h"

#include "models/causal_lm/config.h"
#include "models/family.h"
#include "models/network/llama.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::causal_lm {

namespace {

using nn::Component;
using nn::ParameterScope;

// Names of modules, the prefixes of parameter names.
constexpr const char* kTextModelName = "model";
constexpr const char* kOutputName = "lm_head";

/// The vision side of a model without a vision tower. REQUIRES: batches have no pixels.
class TextOnlyModel : public VisionLanguageModel {
 public:
  using VisionLanguageModel::VisionLanguageModel;

  ImageFeatures get_image_features(const VisionInput& /*vision*/, bool /*with_patch_features*/) const final {
    throw InternalError("this model has no vision tower");
  }
  int64_t num_vision_blocks() const final { return 0; }
};

/// Llama or one of its variants.
class LlamaForCausalLm final : public TextOnlyModel {
 public:
  LlamaForCausalLm(const LlamaConfig& config, const nn::ParameterSettings& settings)
      : TextOnlyModel(settings),
        text_(ParameterScope(parameters(), Component::kLanguageModel, kTextModelName), config,
              ParameterScope(parameters(), Component::kLanguageModel, kOutputName)) {}

  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const override {
    return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(),
                                       cache);
  }
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  CausalLlama text_;
};

/// The text model of Gemma 3.
class Gemma3ForCausalLm final : public TextOnlyModel {
 public:
  Gemma3ForCausalLm(const gemma3::TextConfig& config, bool is_tied, const nn::ParameterSettings& settings)
      : TextOnlyModel(settings),
        text_(ParameterScope(parameters(), Component::kLanguageModel, kTextModelName), config, /*tokens_per_image=*/0,
              is_tied, ParameterScope(parameters(), Component::kLanguageModel, kOutputName)) {}

  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const override {
    return text_(batch, image_features, request, recompute_block_counts().language_counts(), cache);
  }
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  gemma3::TextModel text_;
};

}  // namespace

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, (folder / "config.json").string());
  if (const auto* const gemma = std::get_if<gemma3::TextConfig>(&config.text))
    return std::make_unique<Gemma3ForCausalLm>(*gemma, config.tie_word_embeddings, settings);
  return std::make_unique<LlamaForCausalLm>(std::get<LlamaConfig>(config.text), settings);
}

}  // namespace vlmtrain::models::causal_lm
