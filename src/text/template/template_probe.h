#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime/value.h"
#include "text/jinja/template.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// A piece of the text of a turn: a placeholder of an image or video, or text between placeholders.
struct TurnPiece {
  /// The kind of a piece.
  enum class Kind : uint8_t { kText, kImage, kVideo };
  Kind kind;
  std::string_view text{};  ///< view of the turn's text; empty for placeholders
};

/// Splits the text of `turn` at its placeholders. The result refers to `turn`, which must outlive
/// it. Text that only looks like a placeholder (io::find_placeholders() skips it) remains text. A
/// line break after a placeholder at the beginning of the turn is dropped. No piece of text is
/// empty.
std::vector<TurnPiece> split_at_placeholders(const Turn& turn);

/// The form in which a template expects the content of messages, by role: a list of blocks such as
/// {"type": "text", "text": …}, or one string.
struct ContentFormat {
  bool system_uses_blocks = true;  ///< true: a list of blocks; false: a string
  bool user_uses_blocks = true;
  bool assistant_uses_blocks = true;
  bool called_answer_uses_blocks = true;  ///< of an assistant turn with tool calls or reasoning and text

  /// Returns whether the content of the message of `turn` is a list of blocks. An answer without
  /// text, next to tool calls, is an empty string; the output of a tool is a list if it has media.
  bool uses_content_blocks(const Turn& turn) const;
};

/// The origin number of the `type` strings of blocks ("text", "image"). If it occurs in the output,
/// the template printed a list of blocks instead of reading it. Larger than any turn index.
inline constexpr int kBlockTypeOrigin = 1 << 30;

/// Returns the template variable `messages`. The text of turn n and the texts in its fields have the
/// origin number n (see jinja::TextWithOrigins); images and videos have no origin. A message without
/// content has no such key, and reasoning has each name that transformers gives it.
jinja::Value make_messages(std::span<const Turn> turns, const ContentFormat& content_format,
                           const TemplateSettings& settings);

/// Properties of a template, found by rendering small conversations.
struct TemplateTraits {
  ContentFormat content_format;
  /// White space that the template writes between the generation prompt and an answer. The model
  /// has to generate it, so it belongs to the answer.
  std::string answer_leading_space{};
  /// The text that add_generation_prompt=true appends. Empty if the option changes other parts of
  /// the text.
  std::string generation_prompt{};
  std::string end_of_turn_token{};  ///< the token that ends an answer; never empty after probe_template()
  /// Template text from the end of an answer through the end-of-turn token, such as " </s>": first
  /// after the last answer, then after earlier answers.
  std::vector<std::string> answer_endings{};
  /// Whether the template writes no token after the last answer, so that ChatTemplate inserts
  /// `end_of_turn_token`.
  bool omits_last_end_of_turn = false;
  bool writes_bos_token = false;     ///< whether rendered text begins with the tokenizer's bos_token
  std::vector<std::string> notes{};  ///< differences between generating and training, for the log
};

/// Renders `turns` with the variables that transformers defines, and with those of the record. The
/// text of turn n has the origin number n in the result. Throws jinja::TemplateError.
jinja::RenderedText render_messages(const jinja::Template& jinja_template, std::span<const Turn> turns,
                                    const ContentFormat& content_format, const TemplateSettings& settings,
                                    bool add_generation_prompt,
                                    std::span<const io::TemplateValue> record_variables = {});

/// Returns the traits of `jinja_template`, which was parsed from `source`. Throws UserError (bad
/// data) if the template omits or repeats answers, or if the tokenizer has no end-of-turn token.
TemplateTraits probe_template(const jinja::Template& jinja_template, const TemplateSource& source,
                              const TemplateSettings& settings, const Tokenizer& tokenizer);

/// Returns the spans of the bytes that come from `origin`: the index of a turn, or
/// kBlockTypeOrigin. The spans are in order. An empty turn gives one empty span. The result is
/// empty if the template omits the text.
std::vector<TextSpan> find_origin_spans(const jinja::RenderedText& rendering, int origin);

/// Returns whether the output contains `text`, the text of turn `origin`, more than once, so that
/// its position is ambiguous.
bool is_text_repeated(const jinja::RenderedText& rendering, int origin, std::string_view text);

}  // namespace vlmtrain::text
