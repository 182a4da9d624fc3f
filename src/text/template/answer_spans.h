#pragma once

#include <string_view>
#include <vector>

#include "text/template/template_probe.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// The bytes of one answer in a rendered text.
struct AnswerSpans {
  /// In order, without overlap. Empty if the template omits the answer. More than one if media or
  /// text of another turn separates its parts.
  std::vector<Span> spans;
  bool is_complete = true;  ///< the text has all visible characters of the answer
};

/// Returns the answer of turn `turn`, whose text without media is `answer_text`, from its first to
/// its last character. A template may split an answer and write parts of it itself, such as
/// `<think>` and `</think>`. Template text between two parts belongs to the answer. At the ends, so
/// does template text that equals the omitted part of the answer, but not the end of the generation
/// prompt.
AnswerSpans find_answer_spans(const jinja::Rendering& rendering, int turn, std::string_view answer_text,
                              const TemplateTraits& traits, const TemplateSettings& settings);

}  // namespace vlmtrain::text
