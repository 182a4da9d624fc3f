#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/io/record.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

class Tokenizer;
struct TemplateSettings;

/// The Jinja source of a chat template, and its origin.
struct TemplateSource {
  std::string jinja_source;            ///< text of the template
  std::string name;                    ///< for messages: a file, or the name of a built-in template
  bool is_checkpoint_default = false;  ///< whether transformers uses this template for the checkpoint
  /// The token that ends an answer in a built-in template; empty if the template does not write
  /// one. data() is null for all other templates. Refers to static storage.
  std::string_view end_of_turn_token{};
};

/// Returns the names of the built-in templates, in alphabetical order. Model families whose
/// checkpoints have no template were trained with these. The templates write an image as `<image>`
/// and a video as `<video>`; ChatTemplate inserts the family's markup.
std::vector<std::string_view> get_builtin_template_names();

/// Returns a built-in template. Throws UserError (usage) with a list of the names if `name` is
/// unknown.
TemplateSource get_builtin_template(std::string_view name);

/// Returns the chat templates of a checkpoint folder by name. The order of precedence is the same
/// as in transformers 5.24: processor_config.json, chat_template.json, chat_template.jinja with
/// additional_chat_templates/NAME.jinja, then tokenizer_config.json. The key `chat_template` of the
/// JSON files is a string, a list of {name, template}, or an object of names and templates. A
/// single template is named "default". Logs a warning if several files have different default
/// templates. Throws UserError (bad data) for malformed files.
std::map<std::string, TemplateSource> load_checkpoint_templates(const std::filesystem::path& folder);

/// Returns the template that the config key data.chat_template selects with the value `name`.
/// "auto": the checkpoint's default, or the built-in template `fallback` if the checkpoint has no
/// template. Otherwise one of `checkpoint_templates`, a built-in template, or a file that ends with
/// .jinja. Throws UserError (usage) with a list of the names if there is no such template, or if
/// "auto" is ambiguous.
TemplateSource choose_template(const std::string& name,
                               const std::map<std::string, TemplateSource>& checkpoint_templates,
                               std::string_view fallback);

/// Fills special_tokens_map and eos_tokens of `settings` from tokenizer_config.json and
/// special_tokens_map.json, as transformers reads them, and from eos_token_id of
/// generation_config.json and config.json. Missing files are skipped. Throws UserError (bad data)
/// for malformed files.
void read_special_tokens(const std::filesystem::path& folder, const Tokenizer& tokenizer, TemplateSettings& settings);

/// Returns the eos_token_id of a config.json or generation_config.json: one integer or a list. The
/// result is empty if the key is absent or null. `source` names the file in messages. Throws
/// UserError (bad data) for other values.
std::vector<int64_t> parse_eos_token_ids(const nlohmann::json& config, const std::string& source);

using io::kImagePlaceholder;
using io::kVideoPlaceholder;
using io::Role;
using io::Turn;

/// A range of bytes [begin, end) of a text.
struct TextSpan {
  size_t begin;
  size_t end;
  bool operator==(const TextSpan&) const = default;
};

/// An image or a video in a rendered text. `span` covers the placeholder token that the media
/// tokens replace.
struct MediaSpan {
  TextSpan span;
  bool is_video = false;
  bool operator==(const MediaSpan&) const = default;
};

/// A conversation as the text that the model reads. All spans are byte ranges of `text`.
struct RenderedChat {
  std::string text;
  /// The bytes whose tokens are labels, in order and without overlap. For an assistant turn:
  /// everything from the first to the last character of its text, white space between the
  /// generation prompt and the text, and the end of turn with the characters before it. Also the
  /// output of `{% generation %}` blocks. With tool calls or reasoning: everything from the
  /// generation prompt through the end of turn. Excludes media, other template output, and turns
  /// that are not learned.
  std::vector<TextSpan> answers{};
  /// The weight of each of `answers` in the loss, above 0 and at most 1; empty if all are 1.
  std::vector<float> answer_weights{};
  std::vector<MediaSpan> media{};  ///< in order
  /// Notices about parts of the conversation that the template omits and about answers without an
  /// end of turn. At most one notice per kind.
  std::vector<io::Notice> notices{};
  /// Whether the text is a document, which no chat template wrote: the tokenizer adds its tokens.
  bool is_document = false;
};

/// The text that the templates of a model family write for an image or a video.
struct MediaMarkup {
  std::string block;  ///< such as "<|vision_start|><|image_pad|><|vision_end|>"
  std::string token;  ///< the part of `block` that the media tokens replace, such as "<|image_pad|>"
};

/// The inputs of a template other than the conversation.
struct TemplateSettings {
  MediaMarkup image_markup{std::string(kImagePlaceholder), std::string(kImagePlaceholder)};
  MediaMarkup video_markup{};  ///< empty: the family has no video
  /// Text to insert after an image at the beginning of a turn. Used only if the template takes the
  /// content of a turn as one string.
  std::string text_after_leading_image = "\n";
  /// Names and values of template variables such as bos_token and eos_token.
  std::vector<std::pair<std::string, std::string>> special_tokens_map{};
  /// Tokens that end a text of this model, the most likely one first.
  std::vector<std::string> eos_tokens{};
  std::string current_time{};  ///< date that strftime_now formats, such as "2026-11-22"; empty: strftime_now throws
};

/// A checkpoint's chat template, rendered as transformers renders it.
///
/// A turn becomes a message with a list of blocks (images, videos, texts) if the template supports
/// lists, else with one string; the constructor detects which one. A line break right after the
/// placeholders at the beginning of a turn is dropped, because LLaVA's data writes
/// "<image>\nQuestion" for the blocks [image, "Question"]. Other text is unchanged.
///
/// Answers are located by the origin of each character (the turn from which it comes), not by
/// searching for their text. If the template writes no end-of-turn token after the last answer
/// (llava-hf's templates), render() replaces the white space there with end_of_turn_token();
/// otherwise the model would not learn to stop.
///
/// Immutable and thread-safe.
class ChatTemplate {
 public:
  /// Renders small conversations to detect the properties of the template. Uses `tokenizer` only
  /// during construction. Throws UserError (bad data) with source, line and reason for a syntax
  /// error, an unsupported feature, a template that writes no answers, and an end-of-turn token
  /// that the tokenizer lacks.
  ChatTemplate(TemplateSource source, TemplateSettings settings, const Tokenizer& tokenizer);

  /// Returns the template. In a built-in template, the markup of the model family replaces
  /// `<image>` and `<video>`.
  const TemplateSource& source() const;
  /// Returns the inputs of the template: the markup of the model family and its special tokens.
  const TemplateSettings& settings() const;
  /// Returns the token that ends an answer, such as "<end_of_utterance>".
  std::string_view end_of_turn_token() const;
  /// Returns whether the template omits the end of turn after the last answer, so that render()
  /// adds it.
  bool omits_last_end_of_turn() const;
  /// Returns whether rendered text begins with the tokenizer's bos_token, which must not be added
  /// again.
  bool writes_bos_token() const;
  /// Returns one line for the log with the source, the end-of-turn token, and differences between
  /// generation and training.
  std::string describe() const;

  /// Renders `turns` with the variables of their record. With `add_generation_prompt`, the text ends
  /// where the next answer begins. Tokens of the tokenizer's post-processor (such as `<s>`) are not
  /// included. Throws UserError (bad data) if `turns` is empty, if the template rejects the
  /// conversation, or if the label tokens of an answer with tool calls or reasoning are unknown.
  RenderedChat render(std::span<const Turn> turns, bool add_generation_prompt,
                      std::span<const io::TemplateValue> variables = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Returns the mask of label tokens, one entry per token of `encoding`: 1 if the token begins
/// inside one of `answers`, else 0. A token that begins before an answer and reaches into it is a
/// label if only white space of the token precedes the answer (" Yes" after "Answer: "). REQUIRES
/// that `encoding` is the encoding of `text` and that `answers` are in order without overlap.
std::vector<char> compute_label_mask(const Encoding& encoding, std::string_view text,
                                     std::span<const TextSpan> answers);

/// Returns the weight of each token in the loss: that of the answer whose label it is, and 0 for
/// other tokens. `weights` has the weight of each of `answers`. Returns an empty list if `weights`
/// is empty. REQUIRES the same of the other arguments as compute_label_mask().
std::vector<float> compute_label_weights(const Encoding& encoding, std::string_view text,
                                         std::span<const TextSpan> answers, std::span<const float> weights);

}  // namespace vlmtrain::text
