#pragma once

#include <span>

#include "text/template/answer_spans.h"
#include "text/template/template_probe.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// Finds the label spans and the media in `rendering`, the rendered text of `turns`. If
/// `ends_with_answer`, the last turn is complete, and a missing end of turn is inserted. `variables`
/// are those of the record. Throws as ChatTemplate::render().
RenderedChat build_rendered_chat(jinja::RenderedText rendering, std::span<const Turn> turns, bool ends_with_answer,
                                 const TemplateTraits& traits, const TemplateSettings& settings,
                                 std::span<const io::TemplateValue> variables, const TurnsRenderer& render_turns);

}  // namespace vlmtrain::text
