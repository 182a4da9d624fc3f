#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/template.h"
#include "text/template/chat_messages.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Properties of a template that small conversations reveal.
struct TemplateTraits {
  ContentFormat content_format;
  /// White space between the generation prompt and an answer, which the model has to generate.
  std::string answer_begin{};
  /// The text that add_generation_prompt appends. Empty if it changes the text elsewhere.
  std::string generation_prompt{};
  std::string end_of_turn{};
  /// Template text from an answer to the end of its turn, such as " </s>": after the last answer,
  /// and after earlier answers if it differs there.
  std::vector<std::string> endings{};
  bool lacks_end_of_turn = false;
  bool writes_bos = false;
  std::vector<std::string> notes{};  ///< differences between generating and training, for the log
};

/// Renders `turns` with the variables that transformers defines. Throws jinja::TemplateError.
jinja::Rendering render_messages(const jinja::Template& jinja, std::span<const Turn> turns,
                                 const ContentFormat& content_format, const TemplateSettings& settings,
                                 bool add_generation_prompt);

/// Returns the traits of a template. Throws UserError as ChatTemplate's constructor.
TemplateTraits probe_template(const jinja::Template& jinja, const TemplateSource& source,
                              const TemplateSettings& settings, const Tokenizer& tokenizer);

/// Returns the bytes that come from `origin`, in order; an empty span for an empty text. Returns
/// nothing if the template omits the text.
std::vector<Span> find_spans(const jinja::Rendering& rendering, int origin);

/// Returns whether the `text` of this origin occurs more than once, so that its position is
/// ambiguous.
bool is_repeated(const jinja::Rendering& rendering, int origin, std::string_view text);

}  // namespace vlmtrain::text
