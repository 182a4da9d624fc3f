#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "text/template/template_probe.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// Returns the text of the first `num_turns` turns with the generation prompt.
using PromptRenderer = std::function<std::string(size_t num_turns)>;

/// Finds the label spans and the media in `rendering`, the rendered text of `turns`. If
/// `ends_with_answer`, the last turn is complete, and a missing end of turn is inserted. `variables`
/// are those of the record. Throws as ChatTemplate::render().
RenderedChat build_rendered_chat(jinja::RenderedText rendering, std::span<const Turn> turns, bool ends_with_answer,
                                 const TemplateTraits& traits, const TemplateSettings& settings,
                                 std::span<const io::TemplateValue> variables, const PromptRenderer& render_prompt);

}  // namespace vlmtrain::text
