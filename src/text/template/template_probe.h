#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/template.h"
#include "text/template/chat_messages.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

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
