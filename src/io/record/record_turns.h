#pragma once

#include <vector>

#include "io/record/keys/record_keys.h"
#include "io/record/media_refs.h"
#include "io/record/media_slots.h"
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

}  // namespace vlmtrain::io
