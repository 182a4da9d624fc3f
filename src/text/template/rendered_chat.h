#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
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

/// The part of a rendered text that the model generates for an answer with tool calls or reasoning.
/// Templates write these themselves, as JSON or between tags, so the label tokens are not found by
/// the origin of the text, but as what follows the generation prompt.
struct GeneratedAnswer {
  /// From the generation prompt through the end of turn. Nothing if the template omits the tool
  /// calls and reasoning of this answer, which is then an answer of text only.
  std::optional<TextSpan> span{};
  bool has_end_of_turn = true;              ///< false: the last answer, after which the template writes no end of turn
  std::vector<const char*> notice_kinds{};  ///< what the template omits
};

/// Returns the text of the first `num_turns` turns, optionally with the generation prompt.
using TurnsRenderer = std::function<std::string(size_t num_turns, bool add_generation_prompt)>;

/// Finds the answer of `turn`, the turn with index `origin`, which has tool calls or reasoning. The
/// end of turn is the first end-of-turn or EOS token after its texts. If later turns repeat these
/// texts, as the name of a tool, it is the end of the turns through this one. Throws UserError (bad
/// data) if the turns before it with the generation prompt are not the beginning of the text, if the template omits a
/// tool call, and if no end of turn follows an answer that is not the last.
GeneratedAnswer find_generated_answer(const jinja::RenderedText& rendering, const Turn& turn, int origin,
                                      const TurnsRenderer& render_turns, bool is_last_answer,
                                      const TemplateTraits& traits, const TemplateSettings& settings);

/// Returns a notice if `text` contains none of the names of the record's tools; else nothing.
std::optional<io::Notice> find_omitted_tools(std::string_view text, std::span<const io::TemplateValue> variables);

/// Finds the label spans and the media in `rendering`, the rendered text of `turns`. If
/// `ends_with_answer`, the last turn is complete, and a missing end of turn is inserted. `variables`
/// are those of the record. Throws as ChatTemplate::render().
RenderedChat build_rendered_chat(jinja::RenderedText rendering, std::span<const Turn> turns, bool ends_with_answer,
                                 const TemplateTraits& traits, const TemplateSettings& settings,
                                 std::span<const io::TemplateValue> variables, const TurnsRenderer& render_turns);

}  // namespace vlmtrain::text
