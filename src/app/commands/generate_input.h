#pragma once

#include <string>

#include "app/settings/arguments.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::app {

/// Throws UserError (kUsage) unless the input is given either by --prompt or by --data, with flags
/// that apply to it, or if a text is not valid UTF-8.
void check_prompt_flags(const GenerateArguments& arguments);

/// Returns a record with the texts and files of --prompt, --system, --image, --video and --volume.
/// Images and videos come before the text unless the prompt has placeholders for them. Does not
/// open the files. Throws UserError (kUsage) if the number of placeholders or modalities differs
/// from the number of files.
io::Record make_record(const GenerateArguments& arguments);

/// Returns the record of --data that --record selects by id or by position from 1, or the first
/// record if --record is not given. Throws UserError (kUsage) if there is no such record and
/// UserError (kBadData) if it is invalid.
io::Record load_record(const GenerateArguments& arguments, const io::RecordSettings& settings);

/// Returns the output of --show-prompt: the rendered chat, with label text between ⟦ and ⟧, then
/// lines about tokens, template and notices. With `ends_before_answer` the chat ends where the
/// model's answer would start, and has no labels. Otherwise it is a training sample. Throws
/// UserError (kBadData) for media that cannot be read.
std::string format_prompt(const models::Processor& processor, const io::Record& record, bool ends_before_answer);

/// Returns the output of --show-prompt --json, an object: "text", "label_spans" ([begin, end) in
/// bytes of "text"), "token_ids", "is_label" (0 or 1 for each token), "image_tokens" (their
/// number), "chat_template" (its name), "end_of_turn" (the text after an answer).
std::string format_prompt_json(const models::Processor& processor, const io::Record& record, bool ends_before_answer);

}  // namespace vlmtrain::app
