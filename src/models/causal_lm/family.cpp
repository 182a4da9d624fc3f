#include "models/causal_lm/family.h"

#include "models/family.h"
#include "models/gemma3/family.h"
#include "models/network/gemma/gemma.h"
#include "models/network/llama.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::causal_lm {

Config Config::from_json(const nlohmann::json& json, const std::string& source) {
  Config config;
  if (io::get<std::string>(json, "model_type", source) == "gemma3_text") {
    config.text = gemma3::read_text_config(json, source);
    config.tie_word_embeddings = io::get_or<bool>(json, "tie_word_embeddings", true, source);
    return config;
  }
  const auto text = LlamaConfig::from_json(json, source);
  config.text = text;
  config.tie_word_embeddings = text.tie_word_embeddings;
  return config;
}

int64_t Config::vocab_size() const {
  return std::visit([](const auto& config) { return config.vocab_size; }, text);
}

int64_t Config::max_positions() const {
  return std::visit([](const auto& config) { return config.max_positions; }, text);
}

double Config::num_parameters() const {
  return std::visit([](const auto& config) { return config.num_parameters(); }, text);
}

std::string_view choose_fallback_template(const Config& config, const text::Tokenizer& tokenizer) {
  const auto* const llama = std::get_if<LlamaConfig>(&config.text);
  if (llama == nullptr) return "gemma3";
  switch (llama->type) {
    case TextModelType::kLlama:
      return tokenizer.token_to_id("<|im_end|>") ? "chatml" : "llava_v1";
    case TextModelType::kMistral:
      return "mistral_instruct";
    case TextModelType::kQwen2:
    case TextModelType::kQwen3:
    case TextModelType::kQwen35:
    case TextModelType::kSmolLm3:
      return "chatml";
  }
  throw InternalError("unknown text model");
}

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
                                    const OutputRequest& request, nn::GenerationCache* cache) const override {
    return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(),
                                       cache);
  }
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  CausalLlama text_;
};

class GemmaForCausalLm final : public TextOnlyModel {
 public:
  GemmaForCausalLm(const GemmaConfig& config, bool is_tied, const nn::ParameterSettings& settings)
      : TextOnlyModel(settings),
        text_(ParameterScope(parameters(), Component::kLanguageModel, kTextModelName), config, is_tied,
              ParameterScope(parameters(), Component::kLanguageModel, kOutputName)) {}

  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override {
    return text_(batch, image_features, /*tokens_per_image=*/{}, request, recompute_block_counts().language_counts(),
                 cache);
  }
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  GemmaModel text_;
};

}  // namespace

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, (folder / "config.json").string());
  if (const auto* const gemma = std::get_if<GemmaConfig>(&config.text))
    return std::make_unique<GemmaForCausalLm>(*gemma, config.tie_word_embeddings, settings);
  return std::make_unique<LlamaForCausalLm>(std::get<LlamaConfig>(config.text), settings);
}

namespace {

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = read_config(config_json, folder);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  check_vocabulary(tokenizer, config.vocab_size());
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings, {.fallback = choose_fallback_template(config, tokenizer)});
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{.encoder = std::make_unique<ChatEncoder>(std::move(tokenizer), std::move(chat_template),
                                                              ChatEncoderSettings{})},
      settings);
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = read_config(config_json, folder).max_positions(), .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return read_config(config_json, folder).num_parameters();
}

constexpr std::string_view kDifferentModelReason = "a different model than Gemma 3's text model";

}  // namespace

Family make_family() {
  return {.model_types = {"llama", "mistral", "qwen2", "qwen3", "qwen3_5_text", "smollm3", "gemma3_text"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = nullptr,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .unsupported_model_types = {{"gemma", kDifferentModelReason},
                                      {"gemma2", kDifferentModelReason},
                                      {"gemma3n_text", kDifferentModelReason}}};
}

}  // namespace vlmtrain::models::causal_lm
