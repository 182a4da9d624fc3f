#pragma once

#include <string>
#include <string_view>

#include "vlmtrain/report/inspection.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::report {

/// Returns the data's summary in one sentence without line break: "3,064 samples, all of which can
/// be used".
std::string format_inspection_headline(const Inspection& inspection);

/// Returns the inspection as text for a terminal, with the first entries of lists. Ends with a line
/// break.
std::string format_inspection(const Inspection& inspection, const TextStyle& style);

/// Returns the rendered text with `open` and `close` around the trained responses. `escape` is
/// applied to each piece of the text.
std::string mark_answers(const text::RenderedChat& chat, std::string_view open = "⟦", std::string_view close = "⟧",
                         std::string (*escape)(std::string_view) = nullptr);

}  // namespace vlmtrain::report
