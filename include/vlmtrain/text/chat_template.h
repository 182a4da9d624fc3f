#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/io/notice.h"
#include "vlmtrain/text/conversation.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Bytes [begin, end) of a text.
struct Span {
  size_t begin;
  size_t end;
  bool operator==(const Span&) const = default;
};

/// Where an image or a video stands in a rendered text: what is to be replaced by its tokens.
struct MediaSpan {
  Span span;
  bool is_video = false;
  bool operator==(const MediaSpan&) const = default;
};

/// A conversation as the model reads it.
struct RenderedChat {
  std::string text;
  /// What the model has to produce, in order and without overlap: of each assistant turn everything from the first to
  /// the last character of its text, white space that the template writes between the generation prompt and it, and the
  /// end of turn with what stands before it; and what `{% generation %}` blocks write. No media, nothing else that the
  /// template writes.
  std::vector<Span> answers{};
  std::vector<MediaSpan> media{};  ///< in order
  /// What of the conversation the template leaves out, and answers that never end; at most one of a kind.
  std::vector<io::Notice> notices{};
};

/// A chat template in Jinja and where it is from.
struct TemplateSource {
  std::string jinja;
  std::string name;                    ///< for messages: a file, or a name of the table
  bool is_checkpoint_default = false;  ///< as its default, which whoever loads the checkpoint takes
  std::string_view end_of_turn{};      ///< of a template of the table: the token that it ends answers with
};

/// The templates that come with the program, by name: what families without a template of their own were taught with.
/// In each an image is `<image>`, and a video `<video>`, in the place of what a family has for them.
std::vector<std::string_view> builtin_template_names();
/// Throws UserError (usage) that lists the names if there is none.
TemplateSource find_builtin_template(std::string_view name);

/// What a family's templates write for a medium, and which part of that its tokens take the place of.
struct MediaPlaceholder {
  std::string block;  ///< such as "<|vision_start|><|image_pad|><|vision_end|>"
  std::string token;  ///< such as "<|image_pad|>"
};

/// What a template is rendered with beside the conversation.
struct TemplateSettings {
  MediaPlaceholder image{std::string(kImagePlaceholder), std::string(kImagePlaceholder)};
  MediaPlaceholder video{};  ///< empty: a family without
  /// Follows an image at a text's front where the template takes a turn's text as one string.
  std::string after_image = "\n";
  /// Variables such as bos_token and eos_token, with their texts.
  std::vector<std::pair<std::string, std::string>> special_tokens{};
  /// Tokens that end a text of this model, the likeliest first.
  std::vector<std::string> end_tokens{};
  std::string now{};  ///< what strftime_now tells: "2026-11-22"
};

/// A checkpoint's chat template, rendered as transformers renders it.
///
/// Turns become messages with a list of blocks, images, videos and texts, where the template takes such, else with one
/// string; the template itself shows which, when it is loaded. A turn's text is cut at its marks; a line break directly
/// after the marks that open it is dropped, since LLaVA's data writes "<image>\nQuestion" for the blocks
/// [image, "Question"]. All other text stays as it is.
///
/// Which characters are an answer's is known by where they come from, not by what they are. Where the template writes
/// no token after an answer (llava-hf's), the first of `end_tokens` is put behind the last answer of a conversation, in
/// the place of the white space there, or the model would not learn to stop.
///
/// Immutable; all methods are thread-safe.
class ChatTemplate {
 public:
  /// Renders a small conversation, so that a template that cannot be used is known here. Throws UserError (bad data)
  /// that names source, line and what is wrong: syntax, what is not supported, a template that writes no answers, a
  /// token that ends turns and that the tokenizer does not have.
  ChatTemplate(TemplateSource source, TemplateSettings settings, const Tokenizer& tokenizer);

  const TemplateSource& source() const;
  /// The text of the token that ends an answer, such as "<end_of_utterance>".
  std::string_view end_of_turn() const;
  /// Whether the template leaves it out, so that it is put there.
  bool lacks_end_of_turn() const;
  /// Whether the rendered text begins with the tokenizer's own start, which is then not to be put there again.
  bool writes_bos() const;
  /// For the log: where it is from, how answers end, and what in it makes asking differ from training.
  std::string description() const;

  /// Renders `turns`; with `add_generation_prompt` the text ends where the next answer begins. Text that a tokenizer's
  /// post-processor adds (such as `<s>`) is not part of it. Throws UserError (bad data) for no turns, or where the
  /// template refuses them.
  RenderedChat render(std::span<const Turn> turns, bool add_generation_prompt) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace vlmtrain::text
