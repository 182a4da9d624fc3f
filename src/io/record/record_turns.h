#pragma once

#include <vector>

#include "io/record/keys/record_keys.h"
#include "io/record/media/record_media.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// The turns and the media of a record, before the media are matched with their placeholders.
struct Conversation {
  std::vector<Turn> turns;
  ConversationMedia media;               ///< slots of the media in the turns
  ListedMedia listed_media;              ///< media that the record lists outside of its turns
  std::vector<ReadObject> read_objects;  ///< turns, content blocks and media objects, in the order of reading
};

/// Reads the turns and the listed media of a record into `conversation`. `turns_json` is the list of
/// its turns (convert_layout). Media of turns and blocks without a placeholder in the text get one.
/// Throws data_error for values that cannot be used; `conversation` then has what was read until
/// then. REQUIRES: `record_json` and `turns_json` outlive `conversation`.
void read_conversation(const RecordJson& record_json, const RecordJson& turns_json, Conversation& conversation);

/// Reads a document, a list of content blocks (take_document), as one turn of Role::kDocument, and
/// the listed media of its record. Placeholders in texts are literal. Throws data_error as
/// read_conversation(), and if there is no text. REQUIRES: as read_conversation().
void read_document(const RecordJson& record_json, const RecordJson& blocks, Conversation& conversation);

}  // namespace vlmtrain::io
