#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/template/chat_messages.h"
#include "text/jinja/template.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// What a template shows of itself when it renders small conversations.
struct TemplateTraits {
  ContentFormat content_format;
  /// White space between the generation prompt and an answer: the model has to produce it.
  std::string answer_begin{};
  /// What asking for an answer adds to the text; empty where it is not all at the end.
  std::string generation_prompt{};
  std::string end_of_turn{};
  /// What the template writes from an answer to the end of its turn, such as " </s>": behind a last answer, and where
  /// it is another, behind an earlier one.
  std::vector<std::string> endings{};
  bool lacks_end_of_turn = false;
  bool writes_bos = false;
  std::vector<std::string> notes{};  ///< where asking differs from training
};

/// The variables that every rendering has.
jinja::Rendering render_messages(const jinja::Template& jinja, std::span<const Turn> turns,
                                 const ContentFormat& content_format, const TemplateSettings& settings,
                                 bool add_generation_prompt);

/// Throws UserError as ChatTemplate's constructor.
TemplateTraits probe_template(const jinja::Template& jinja, const TemplateSource& source,
                              const TemplateSettings& settings, const Tokenizer& tokenizer);

/// Where the characters that come from `origin` stand, in order; of an empty text the place where it was written.
/// Empty: the template leaves it out.
std::vector<Span> find_spans(const jinja::Rendering& rendering, int origin);

/// Whether the `text` of this origin is written more than once: nothing says which place is the turn's.
bool is_repeated(const jinja::Rendering& rendering, int origin, std::string_view text);

}  // namespace vlmtrain::text
