#pragma once

#include <string>

#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::app {

/// What the model reads of a conversation, for people: the rendered text, with what it is trained to write between ⟦
/// and ⟧, and a line about template and tokens. `as_prompt`: up to where the next answer begins, as it is asked.
std::string format_prompt(const models::Processor& processor, const io::Record& record, bool as_prompt);

/// The same as a JSON object: "text", "label_spans" ([begin, end) in bytes), "token_ids" and "is_label" of each token,
/// "image_tokens", "chat_template", "end_of_turn".
std::string format_prompt_json(const models::Processor& processor, const io::Record& record, bool as_prompt);

}  // namespace vlmtrain::app
