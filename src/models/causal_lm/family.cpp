#include "models/family.h"

#include "models/causal_lm/config.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/chat_template.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::causal_lm {

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
  return {.model_types = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3_text"},
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
