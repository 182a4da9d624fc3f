#pragma once

#include <optional>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Moves the document out of a record and returns it as a list of content blocks; nothing if the
/// record is not a document, but has turns or a caption. The keys of a document are
/// - "text": a text, with placeholders for the record's listed media;
/// - "document": a list of texts and content blocks;
/// - "texts" and "images" of OBELICS: lists of equal length, each index with a text or an image;
/// - "text_list" and "image_info" of MMC4.
/// Throws data_error for an invalid or ambiguous document.
std::optional<RecordJson> take_document(RecordJson& record);

}  // namespace vlmtrain::io
