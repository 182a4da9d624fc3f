#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/record/keys/key_rules.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// An object within a record that a reader has read, with the results on which the check of its
/// other keys depends.
struct ReadObject {
  KeyScope scope;                    ///< kTurn, kBlock or kMediaObject
  const RecordJson* json;            ///< must outlive the object; a list of kMediaObject is checked by its entries
  size_t turn_number = 0;            ///< from 1, for messages
  bool is_answer = false;            ///< true in texts that are learned: of the assistant, and of documents
  bool has_unread_role = false;      ///< of a turn with "from": true if "role" is present and not a role
  bool needs_frame_rate = false;     ///< true for a block with a video that uses a frame rate (uses_frame_rate)
  std::string_view block_type = {};  ///< "text", "image", "video" or "volume"
  std::vector<std::string> read_fields = {};  ///< message fields of a turn that were read
};

/// Contents of a record on which the check of its keys depends.
struct RecordContents {
  bool has_images = false;        ///< true if the record has images or volumes
  bool has_videos = false;        ///< true if the record has videos
  bool needs_frame_rate = false;  ///< true if a listed video uses the record's frame rate (uses_frame_rate)
};

/// Checks the unread keys of a record and of the objects that were read from it, in their order
/// (key_rules.h). A key that would change what is learned becomes Record::problem, with a
/// suggestion, and Record::turns then ends before the turn with the key. Other unread keys become
/// notices. A record that has a problem was read up to `read_objects`. Then only those are checked,
/// and whether the record has media under a key that is not read, because that may be the cause.
/// The data set's names in `columns` (RecordSettings::columns) count as read. REQUIRES: values that
/// were read as turns are null in `record_json`.
void check_keys(const RecordJson& record_json, const std::vector<ReadObject>& read_objects,
                const RecordContents& contents, const std::map<std::string, std::string>& columns, Record& record);

}  // namespace vlmtrain::io
