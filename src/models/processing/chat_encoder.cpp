#include "models/processing/chat_encoder.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

namespace {

using TemplateMap = std::map<std::string, text::TemplateSource>;

/// Returns the templates of the files in `folder`; if there are none, the template in config.json.
TemplateMap read_checkpoint_templates(const std::filesystem::path& folder, const FamilyTemplateSettings& family) {
  TemplateMap templates = text::load_checkpoint_templates(folder);
  if (templates.empty() && !family.config_template.empty()) {
    templates.emplace("default", text::TemplateSource{.jinja_source = family.config_template,
                                                      .name = (folder / "config.json").string() + " (" +
                                                              family.config_template_key + ")"});
  }
  return templates;
}

}  // namespace

text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplateSettings& family) {
  const TemplateMap checkpoint_templates = read_checkpoint_templates(folder, family);
  TemplateMap templates = checkpoint_templates;
  if (!settings.chat_template_folder.empty()) {
    if (auto adapter_templates = text::load_checkpoint_templates(settings.chat_template_folder);
        !adapter_templates.empty())
      templates = std::move(adapter_templates);
  }
  text::TemplateSource source = text::choose_template(settings.chat_template, templates, family.fallback);
  const auto checkpoint_default_template = checkpoint_templates.find("default");
  source.is_checkpoint_default = checkpoint_default_template != checkpoint_templates.end() &&
                                 checkpoint_default_template->second.jinja_source == source.jinja_source;

  text::TemplateSettings template_settings{
      .image_markup = family.image_markup,
      .video_markup = family.video_markup,
      .text_after_leading_image = family.text_after_leading_image,
      .current_time = settings.chat_template_date.empty() ? get_current_date() : settings.chat_template_date};
  text::read_special_tokens(folder, tokenizer, template_settings);
  return {std::move(source), std::move(template_settings), tokenizer};
}

text::RenderedChat replace_spans(const text::RenderedChat& chat, std::span<const text::TextSpan> spans,
                                 std::span<const std::string> texts) {
  text::RenderedChat result = chat;
  result.text.clear();
  size_t copied_end = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const size_t begin = spans[i].begin, end = spans[i].end;
    result.text.append(chat.text, copied_end, begin - copied_end);
    result.text += texts[i];
    copied_end = end;
    const size_t added = texts[i].size() - (end - begin);  // wraps around for a shorter text
    const auto move_span = [&](text::TextSpan& span, const text::TextSpan& original) {
      if (original.begin >= end) span.begin += added;
      if (original.end >= end) span.end += added;
    };
    for (size_t answer = 0; answer < chat.answers.size(); ++answer)
      move_span(result.answers[answer], chat.answers[answer]);
    for (size_t medium = 0; medium < chat.media.size(); ++medium)
      move_span(result.media[medium].span, chat.media[medium].span);
  }
  result.text.append(chat.text, copied_end);
  return result;
}

text::RenderedChat expand_media(const text::RenderedChat& chat, std::span<const std::string> expansions) {
  VLMTRAIN_CHECK(expansions.size() <= chat.media.size(), "{} images for {} placeholders in the text", expansions.size(),
                 chat.media.size());
  std::vector<text::TextSpan> spans;
  spans.reserve(expansions.size());
  for (const text::MediaSpan& medium : std::span(chat.media).first(expansions.size())) spans.push_back(medium.span);
  return replace_spans(chat, spans, expansions);
}

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
  if (!id) throw data_error("tokenizer.json: has no token {}; use the checkpoint's own tokenizer.json", token);
  return *id;
}

void check_token_id(const text::Tokenizer& tokenizer, std::string_view token, std::string_view key, int64_t id) {
  const int64_t actual_id = find_token_id(tokenizer, token);
  if (actual_id == id) return;
  throw data_error("config.json: {} is {}, but tokenizer.json gives {} the id {}; use files of one checkpoint", key, id,
                   token, actual_id);
}

void check_vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size) {
  if (tokenizer.vocab_size() > vocab_size) {
    throw data_error(
        "tokenizer.json: has {} tokens, more than vocab_size {} in config.json; set vocab_size to {} and {}=true, "
        "which adds rows",
        tokenizer.vocab_size(), vocab_size, tokenizer.vocab_size(), keys::model::kResizeEmbeddings);
  }
}

text::Tokenizer load_tokenizer(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!std::filesystem::exists(file) && std::filesystem::exists(folder / "tokenizer.model")) {
    throw data_error(
        "{}: has a tokenizer.model but no tokenizer.json; create it with transformers: "
        "AutoTokenizer.from_pretrained(\"{}\", use_fast=True).save_pretrained(\"{}\")",
        folder.string(), folder.string(), folder.string());
  }
  return text::read_tokenizer(folder);
}

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
