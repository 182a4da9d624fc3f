#pragma once

#include <string_view>
#include <vector>

#include "text/template/template_probe.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// The byte ranges of one answer in a rendered text.
struct AnswerSpans {
  /// In order, without overlap. Empty if the template omits the answer. There is more than one span
  /// if media or the text of another turn separates parts of the answer.
  std::vector<TextSpan> spans;
  bool is_complete = true;  ///< whether the spans contain all visible characters of the answer
};

/// Returns the spans of the answer of turn `turn` (an index into the conversation), from its first
/// to its last character. `answer_text` is the text of the turn without media placeholders. A
/// template may split an answer and write parts of it itself, such as `<think>` and `</think>`.
/// Template text between two parts belongs to the answer. Template text before and after it belongs
/// to the answer if it equals the part that the template omitted; the generation prompt never does.
AnswerSpans find_answer_spans(const jinja::RenderedText& rendering, int turn, std::string_view answer_text,
                              const TemplateTraits& traits, const TemplateSettings& settings);

}  // namespace vlmtrain::text
