#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/media/media_layout.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

/// The chat template settings of a family.
struct FamilyTemplateSettings {
  /// Name of the built-in template for a checkpoint without one, as in text::choose_template().
  std::string_view fallback;
  text::MediaMarkup image_markup{std::string(text::kImagePlaceholder), std::string(text::kImagePlaceholder)};
  text::MediaMarkup video_markup{};
  std::string text_after_leading_image = "\n";  ///< as text::TemplateSettings::text_after_leading_image
  std::string config_template{};                ///< template that config.json contains; empty: none
  std::string config_template_key{};            ///< its key in config.json
};

/// Returns the chat template for the checkpoint in `folder`. Candidates are the templates of
/// settings.chat_template_folder, else those of `folder`; settings.chat_template selects one, as in
/// text::choose_template(). Throws UserError: kUsage for an unknown selection, kBadData for invalid
/// files.
text::ChatTemplate load_chat_template(const std::filesystem::path& folder, const text::Tokenizer& tokenizer,
                                      const ProcessorSettings& settings, const FamilyTemplateSettings& family);

/// Returns `chat` with the text of `spans` replaced by `texts`, and the spans of media and answers
/// moved accordingly. REQUIRES: the spans are in order, do not overlap, and are within or outside of
/// each answer; each media placeholder is one of the spans or outside of them.
text::RenderedChat replace_spans(const text::RenderedChat& chat, std::span<const text::TextSpan> spans,
                                 std::span<const std::string> texts);

/// Returns `chat` with its media placeholders replaced by `expansions`, in order, and the spans of
/// media and answers moved accordingly. Placeholders after the last expansion are kept. REQUIRES:
/// the chat has at least as many media as expansions.
text::RenderedChat expand_media(const text::RenderedChat& chat, std::span<const std::string> expansions);

/// A tokenized conversation.
struct EncodedChat {
  std::vector<int64_t> token_ids;
  std::vector<char> label_mask;                ///< for each token, whether it is in the loss
  std::vector<float> label_weights;            ///< for each token, its weight in the loss; empty if all labels have 1
  std::vector<int64_t> image_token_positions;  ///< ascending positions that image features replace
};

/// Settings of ChatEncoder::encode().
struct ChatEncoderSettings {
  int64_t image_token_id = -1;              ///< the token that an image feature replaces; -1: no token
  std::optional<int64_t> video_token_id{};  ///< the same for videos, if it is another token
  /// Whether the tokenizer's post-processor adds its tokens (such as `<s>`), unless the template
  /// writes bos_token.
  bool adds_special_tokens = true;
};

/// Renders conversations with a chat template and tokenizes them. The base class replaces each media
/// placeholder by MediaLayout::text and tokenizes the result as one text; families with another
/// tokenization override encode(). Immutable and thread-safe.
class ChatEncoder {
 public:
  /// Throws UserError (kBadData) if the tokenizer lacks the template's end-of-turn token.
  ChatEncoder(text::Tokenizer tokenizer, text::ChatTemplate chat_template, ChatEncoderSettings settings);
  virtual ~ChatEncoder() = default;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const text::ChatTemplate& chat_template() const { return chat_template_; }
  int64_t end_of_turn_id() const { return end_of_turn_id_; }

  /// Renders a conversation. With `as_prompt`, without the answer of its last turn and without
  /// labels, up to the start of that answer. Throws data::SampleError with `record_id`.
  /// `variables` are Record::template_variables.
  text::RenderedChat render(const std::string& record_id, std::span<const text::Turn> turns, bool as_prompt,
                            std::span<const io::TemplateValue> variables = {}) const;

  /// Returns the text of a document, a turn of io::Role::kDocument. With `as_prompt`, without the
  /// token that ends it and without labels.
  text::RenderedChat render_document(const text::Turn& document, bool as_prompt) const;

  /// Tokenizes a chat or a document. `media` are the layouts of all media, in the order of their
  /// placeholders. Throws data::SampleError, which does not name the sample, for unusable texts.
  virtual EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const;
  /// Returns the number of tokens of the text of a medium.
  int64_t count_tokens(std::string_view media_text) const;
  /// Returns data::Sample::position_ids; empty unless the model has positions on several axes.
  virtual std::vector<int64_t> make_position_ids(const EncodedChat& /*chat*/,
                                                 std::span<const MediaLayout> /*media*/) const {
    return {};
  }

 protected:
  /// Returns whether the tokenizer must add its special tokens to a rendered text.
  bool needs_special_tokens(const text::RenderedChat& chat) const {
    return settings_.adds_special_tokens && (chat.is_document || !chat_template_.writes_bos_token());
  }

 private:
  text::Tokenizer tokenizer_;
  text::ChatTemplate chat_template_;
  ChatEncoderSettings settings_;
  int64_t end_of_turn_id_;
  std::string end_of_text_;             // the token that ends a document
  bool post_processor_ends_documents_;  // the tokenizer adds end_of_text_
};

/// Returns the id of a token. Throws UserError (kBadData) if the tokenizer does not have it.
int64_t find_token_id(const text::Tokenizer& tokenizer, std::string_view token);

/// Throws UserError (kBadData) if the id of a token differs from `id`, the value of `key` in
/// config.json.
void check_token_id(const text::Tokenizer& tokenizer, std::string_view token, std::string_view key, int64_t id);

/// Throws UserError (kBadData) if the tokenizer has more tokens than the embedding has rows.
void check_vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size);

/// Reads `folder`/tokenizer.json. Throws UserError (kBadData) if it is missing or invalid.
text::Tokenizer load_tokenizer(const std::filesystem::path& folder);

/// Returns the token that ends a document: eos_token of the tokenizer, as trl and LLaMA-Factory use
/// it. Without one, the first of the checkpoint's end tokens (eos_token_id), else the token that
/// ends an answer.
std::string find_end_of_text(const text::ChatTemplate& chat_template);

/// Returns whether the tokenizer's post-processor ends each text with `token`.
bool appends_token(const text::Tokenizer& tokenizer, std::string_view token);

/// Returns the text of a document. The family's markup replaces its media placeholders, as in a
/// chat. All text is learned, and so is `end_of_text`, which is appended unless the text ends with
/// it. The markup of media is not learned.
text::RenderedChat render_document(const text::Turn& document, const text::TemplateSettings& settings,
                                   std::string_view end_of_text);

/// Reduces the tokens of a document to those of its sample: its window (Record::window), if it has
/// one. The first token is not a label, because no token precedes it. REQUIRES: record.is_document();
/// a windowed document has no media. Throws data::SampleError if the window is empty, because data
/// or tokenizer have changed.
void select_document_tokens(const io::Record& record, EncodedChat& chat);

/// Returns the text of the window of a document, for previews. Its first token is not learned.
/// REQUIRES: record.window is set, and `document` is its document.
text::RenderedChat render_window(const ChatEncoder& encoder, const io::Record& record,
                                 const text::RenderedChat& document);

}  // namespace vlmtrain::models
