#include "models/processing/chat_encoder.h"

#include <utility>

#include "models/processing/chat_template.h"
#include "models/processing/document_text.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models {

ChatEncoder::ChatEncoder(text::Tokenizer tokenizer, text::ChatTemplate chat_template, ChatEncoderSettings settings)
    : tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      settings_(settings),
      end_of_turn_id_(find_token_id(tokenizer_, chat_template_.end_of_turn_token())),
      end_of_text_(find_end_of_text(chat_template_)),
      post_processor_ends_documents_(settings.adds_special_tokens && appends_token(tokenizer_, end_of_text_)) {}

text::RenderedChat ChatEncoder::render(const std::string& record_id, std::span<const text::Turn> turns, bool as_prompt,
                                       std::span<const io::TemplateValue> variables) const {
  try {
    if (!as_prompt) return chat_template_.render(turns, /*add_generation_prompt=*/false, variables);
    if (!turns.empty() && turns.back().role == text::Role::kAssistant) turns = turns.first(turns.size() - 1);
    text::RenderedChat chat = chat_template_.render(turns, /*add_generation_prompt=*/true, variables);
    chat.answers.clear();
    chat.answer_weights.clear();
    chat.notices.clear();
    return chat;
  } catch (const UserError& error) {
    throw data::SampleError("refused by the chat template", fmt::format("sample {}: {}", record_id, error.what()));
  }
}

text::RenderedChat ChatEncoder::render_document(const text::Turn& document, bool as_prompt) const {
  const bool adds_end = !as_prompt && !post_processor_ends_documents_;
  text::RenderedChat chat = models::render_document(document, chat_template_.settings(), adds_end ? end_of_text_ : "");
  if (as_prompt) chat.answers.clear();
  return chat;
}

EncodedChat ChatEncoder::encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const {
  std::vector<std::string> expansions;
  expansions.reserve(media.size());
  for (const MediaLayout& layout : media) expansions.push_back(layout.text);
  const auto expanded_chat = expand_media(chat, expansions);
  auto encoding = tokenizer_.encode(expanded_chat.text, needs_special_tokens(chat));
  EncodedChat encoded_chat;
  encoded_chat.label_mask = text::compute_label_mask(encoding, expanded_chat.text, expanded_chat.answers);
  encoded_chat.label_weights =
      text::compute_label_weights(encoding, expanded_chat.text, expanded_chat.answers, expanded_chat.answer_weights);
  encoded_chat.token_ids = std::move(encoding.ids);
  for (int64_t position = 0; position < std::ssize(encoded_chat.token_ids); ++position) {
    const int64_t token = encoded_chat.token_ids[static_cast<size_t>(position)];
    if (token == settings_.image_token_id || token == settings_.video_token_id)
      encoded_chat.image_token_positions.push_back(position);
  }
  return encoded_chat;
}

int64_t ChatEncoder::count_tokens(std::string_view media_text) const {
  return std::ssize(tokenizer_.encode(media_text).ids);
}

int64_t find_token_id(const text::Tokenizer& tokenizer, std::string_view token) {
  const auto id = tokenizer.token_to_id(token);
  if (!id) throw data_error("the tokenizer has no token {}, which the chat template needs", token);
  return *id;
}

void check_token_id(const text::Tokenizer& tokenizer, std::string_view token, std::string_view key, int64_t id) {
  const int64_t actual_id = find_token_id(tokenizer, token);
  if (actual_id == id) return;
  throw data_error("config.json's {} is {}, but tokenizer.json gives {} the id {}", key, id, token, actual_id);
}

void check_vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size) {
  if (tokenizer.vocab_size() > vocab_size) {
    throw data_error(
        "tokenizer.json has {} tokens and config.json's vocab_size is {}; the embedding is too small; set vocab_size "
        "to {} and {}=true, which adds rows",
        tokenizer.vocab_size(), vocab_size, tokenizer.vocab_size(), keys::model::kResizeEmbeddings);
  }
}

text::Tokenizer load_tokenizer(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!std::filesystem::exists(file) && std::filesystem::exists(folder / "tokenizer.model")) {
    throw data_error(
        "{} has a tokenizer.model but no tokenizer.json, which is required; create it with transformers: "
        "AutoTokenizer.from_pretrained(\"{}\", use_fast=True).save_pretrained(\"{}\")",
        folder.string(), folder.string(), folder.string());
  }
  return text::read_tokenizer(folder);
}

}  // namespace vlmtrain::models
