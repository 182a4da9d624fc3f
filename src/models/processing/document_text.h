#pragma once

#include <string>
#include <string_view>

#include "models/processing/chat_encoder.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

/// Returns the token that ends a document: eos_token of the tokenizer, as trl and LLaMA-Factory use
/// it. Without one, the first of the checkpoint's end tokens (eos_token_id), else the token that
/// ends an answer.
std::string find_end_of_text(const text::ChatTemplate& chat_template);

/// Returns whether the tokenizer's post-processor ends each text with `token`.
bool appends_token(const text::Tokenizer& tokenizer, std::string_view token);

/// Returns the text of a document. The family's markup replaces its media placeholders, as in a
/// chat. All text is learned, and so is `end_of_text`, which is appended unless the text ends with
/// it. The markup of media is not learned.
text::RenderedChat render_document(const text::Turn& document, const text::TemplateSettings& settings,
                                   std::string_view end_of_text);

/// Reduces the tokens of a document to those of its sample: its window (Record::window), if it has
/// one. The first token is not a label, because no token precedes it. REQUIRES: record.is_document();
/// a windowed document has no media. Throws data::SampleError if the window is empty, because data
/// or tokenizer have changed.
void select_document_tokens(const io::Record& record, EncodedChat& chat);

/// Returns the text of the window of a document, for previews. Its first token is not learned.
/// REQUIRES: record.window is set, and `document` is its document.
text::RenderedChat render_window(const ChatEncoder& encoder, const io::Record& record,
                                 const text::RenderedChat& document);

}  // namespace vlmtrain::models
