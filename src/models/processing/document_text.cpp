#include "models/processing/document_text.h"

#include <algorithm>
#include <span>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample_processor.h"

namespace vlmtrain::models {

std::string find_end_of_text(const text::ChatTemplate& chat_template) {
  const text::TemplateSettings& settings = chat_template.settings();
  const auto& tokens = settings.special_tokens_map;
  const auto eos_token = std::ranges::find(tokens, "eos_token", &std::pair<std::string, std::string>::first);
  if (eos_token != tokens.end()) return eos_token->second;
  return settings.eos_tokens.empty() ? std::string(chat_template.end_of_turn_token()) : settings.eos_tokens.front();
}

bool appends_token(const text::Tokenizer& tokenizer, std::string_view token) {
  const auto id = tokenizer.token_to_id(token);
  if (!id) return false;
  const auto ids = tokenizer.encode("a", /*add_special_tokens=*/true).ids;
  return !ids.empty() && ids.back() == *id;
}

text::RenderedChat render_document(const text::Turn& document, const text::TemplateSettings& settings,
                                   std::string_view end_of_text) {
  text::RenderedChat chat;
  chat.is_document = true;
  const std::string_view text = document.text;
  size_t pos = 0;
  const auto add_text = [&](std::string_view piece) {
    if (piece.empty()) return;
    chat.answers.push_back({chat.text.size(), chat.text.size() + piece.size()});
    chat.text += piece;
  };
  for (const io::MediaPlaceholder& placeholder : io::find_placeholders(document)) {
    add_text(text.substr(pos, placeholder.begin - pos));
    const text::MediaMarkup& markup = placeholder.is_video ? settings.video_markup : settings.image_markup;
    const size_t token_begin = chat.text.size() + markup.block.find(markup.token);
    chat.text += markup.block;
    chat.media.push_back({{token_begin, token_begin + markup.token.size()}, placeholder.is_video});
    pos = placeholder.begin + io::kImagePlaceholder.size();
  }
  add_text(text.substr(pos));
  if (!end_of_text.empty() && !chat.text.ends_with(end_of_text)) add_text(end_of_text);
  return chat;
}

void select_document_tokens(const io::Record& record, EncodedChat& chat) {
  if (record.window) {
    VLMTRAIN_CHECK(chat.image_token_positions.empty(), "a window of a document with images");
    const int64_t num_tokens = std::ssize(chat.token_ids), begin = record.window->first_token();
    const int64_t end = std::min(begin + record.window->tokens, num_tokens);
    if (end - begin < 1) {
      throw data::SampleError("changed text",
                              fmt::format("sample {}: its text has fewer tokens than at the start of the run; do not "
                                          "change data or tokenizer during a run",
                                          record.id));
    }
    chat.token_ids.erase(chat.token_ids.begin() + end, chat.token_ids.end());
    chat.token_ids.erase(chat.token_ids.begin(), chat.token_ids.begin() + begin);
    chat.label_mask.erase(chat.label_mask.begin() + end, chat.label_mask.end());
    chat.label_mask.erase(chat.label_mask.begin(), chat.label_mask.begin() + begin);
  }
  if (!chat.label_mask.empty()) chat.label_mask.front() = 0;
}

text::RenderedChat render_window(const ChatEncoder& encoder, const io::Record& record,
                                 const text::RenderedChat& document) {
  EncodedChat tokens = encoder.encode(document, {});
  select_document_tokens(record, tokens);
  const auto decode = [&](std::span<const int64_t> ids) {
    return encoder.tokenizer().decode(ids, /*skip_special_tokens=*/false);
  };
  text::RenderedChat window;
  window.is_document = true;
  window.text = decode(tokens.token_ids);
  const size_t context_size = decode(std::span(tokens.token_ids).first(1)).size();
  window.answers.push_back({std::min(context_size, window.text.size()), window.text.size()});
  return window;
}

}  // namespace vlmtrain::models
