#pragma once

#include <string>
#include <string_view>

#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::report {

/// The rendered text with `open` and `close` around what the model is trained to write. `escape` is done to each piece
/// of the text.
std::string mark_answers(const text::RenderedChat& chat, std::string_view open = "⟦", std::string_view close = "⟧",
                         std::string (*escape)(std::string_view) = nullptr);

}  // namespace vlmtrain::report
