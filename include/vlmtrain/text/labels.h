#pragma once

#include <span>
#include <vector>

#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Which tokens the loss is taken over: 1 for each token that begins inside one of `answers`, else 0. A token that
/// begins before an answer and reaches into it is part of the prompt. `encoding` is of the text that the spans are of;
/// REQUIRES spans in order and without overlap.
std::vector<char> answer_tokens(const Encoding& encoding, std::span<const Span> answers);

}  // namespace vlmtrain::text
