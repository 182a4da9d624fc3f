#pragma once

#include <string_view>
#include <vector>

#include "text/template/template_probe.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// The place of one answer in a rendered text.
struct AnswerSpans {
  /// In order, without overlap. Empty: the template leaves the answer out. One, unless a medium or another turn's text
  /// stands between its parts.
  std::vector<Span> spans;
  bool is_complete = true;  ///< no visible character of the answer is missing
};

/// Finds the answer of turn `turn`, whose text without media is `answer_text`: everything from its first to its last
/// character. A template may take an answer apart and write parts of it itself (`<think>` and `</think>`): what it
/// writes between two parts belongs to the answer, and so does what it writes at its ends where it is the same as what
/// it left out there, without what the generation prompt ends with.
AnswerSpans find_answer_spans(const jinja::Rendering& rendering, int turn, std::string_view answer_text,
                              const TemplateTraits& traits, const TemplateSettings& settings);

}  // namespace vlmtrain::text
