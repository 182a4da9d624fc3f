#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Which tokens the loss is taken over: 1 for each token that begins inside one of `answers`, else 0. A token that
/// begins before an answer and reaches into it is part of the answer where only white space of it stands before (" Yes"
/// behind "Answer: "), else of the prompt. `encoding` is of `text`, which the spans are of; REQUIRES spans in order and
/// without overlap.
std::vector<char> compute_label_mask(const Encoding& encoding, std::string_view text, std::span<const Span> answers);

}  // namespace vlmtrain::text
