#pragma once

#include <string>

#include "app/arguments/arguments.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::app {

/// Throws UserError (kUsage) unless the question is either typed or that of a record of --data.
void check_prompt_flags(const GenerateArguments& arguments);

/// Returns the typed question as a record. Images and videos come before the text unless the prompt
/// has marks for them. Throws UserError (kUsage) where marks or modalities do not fit the files.
io::Record make_record(const GenerateArguments& arguments);

/// Returns the record of --data that --record names by id or by position from 1; the first one
/// without a name. Throws UserError.
io::Record load_record(const GenerateArguments& arguments, const io::RecordSettings& settings);

/// Returns the model's input for people: the rendered text, with trained parts between ⟦ and ⟧, and
/// a line about template and tokens. `as_prompt`: only up to the start of the next answer.
std::string format_prompt(const models::Processor& processor, const io::Record& record, bool as_prompt);

/// Returns the same as a JSON object: "text", "label_spans" ([begin, end) in bytes), "token_ids",
/// "is_label" of each token, "image_tokens", "chat_template", "end_of_turn".
std::string format_prompt_json(const models::Processor& processor, const io::Record& record, bool as_prompt);

}  // namespace vlmtrain::app
