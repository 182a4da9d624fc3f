#pragma once

#include <string>
#include <string_view>

#include "vlmtrain/report/inspection.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::report {

/// What there is to say of the data in a sentence, without line break: "3,064 samples, all of which can be used".
std::string format_inspection_headline(const Inspection& inspection);

/// An inspection for people: of lists the first few entries. Ends with a line break.
std::string format_inspection(const Inspection& inspection, const TextStyle& style);

/// The rendered text with `open` and `close` around what the model is trained to write. `escape` is done to each piece
/// of the text.
std::string mark_answers(const text::RenderedChat& chat, std::string_view open = "⟦", std::string_view close = "⟧",
                         std::string (*escape)(std::string_view) = nullptr);

}  // namespace vlmtrain::report
