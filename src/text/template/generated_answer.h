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

// Answers with tool calls or reasoning. Templates write these themselves, as JSON or between tags,
// so the label tokens are not found by the origin of the text, but as what follows the generation
// prompt.

namespace vlmtrain::text {

/// The part of a rendered text that the model generates for an answer.
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
/// end of turn is the first end-of-turn or EOS token after its texts. Where later turns repeat these
/// texts, as the name of a tool, it is the end of the turns through this one. Throws UserError (bad
/// data) if the turns before it with the generation prompt are not the beginning of the text, if the template omits a
/// tool call, and if no end of turn follows an answer that is not the last.
GeneratedAnswer find_generated_answer(const jinja::RenderedText& rendering, const Turn& turn, int origin,
                                      const TurnsRenderer& render_turns, bool is_last_answer,
                                      const TemplateTraits& traits, const TemplateSettings& settings);

/// Returns a notice if `text` contains none of the names of the record's tools; else nothing.
std::optional<io::Notice> find_omitted_tools(std::string_view text, std::span<const io::TemplateValue> variables);

}  // namespace vlmtrain::text
