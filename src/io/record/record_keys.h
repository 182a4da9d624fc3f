#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/record/key_rules.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Contents of a record on which the check of its unread keys depends.
struct RecordContents {
  bool has_images = false;           ///< true if the record has images or volumes
  bool has_videos = false;           ///< true if the record has videos
  bool needs_frame_rate = false;     ///< true if a video uses the record's frame rate (uses_frame_rate)
  std::span<const Turn> turns = {};  ///< must outlive the object
};

/// A checker for the unread keys of one record (key_rules.h). Its functions throw data_error with a
/// suggestion for a key that would change what is learned. Other unread keys become notices.
class RecordKeyChecker {
 public:
  /// The data set's names in `columns` (RecordSettings::columns) count as read. Notices are
  /// appended to `notices`. Both references must outlive the object.
  RecordKeyChecker(const std::map<std::string, std::string>& columns, std::vector<Notice>& notices)
      : columns_(columns), notices_(notices) {}

  /// Checks the keys of a record. `turns` is the list in `record` from which the turns were read.
  /// REQUIRES: add_messages() has set converted values to null.
  void check_record_keys(const RecordJson& record, const RecordJson& turns, const RecordContents& contents);
  /// Throws data_error if a record has an image or a video only under a key that is not read.
  /// Called for records with another problem, because that may be its cause.
  void check_record_media_keys(const RecordJson& record, const RecordContents& contents);
  /// Checks the keys of a turn. `turn_number` counts from 1, for messages; `fields` are the message
  /// fields that were read. Returns true if the turn has its own media.
  bool check_turn_keys(const RecordJson& turn, size_t turn_number, const std::vector<TemplateValue>& fields);
  /// Checks the keys of a content block. `type` is "text", "image", "video" or "volume".
  /// `needs_frame_rate` is true if the block is a video that uses a frame rate.
  void check_block_keys(const RecordJson& block, std::string_view type, size_t turn_number, bool is_answer,
                        bool needs_frame_rate);
  /// Checks the keys of media objects. `value` is one or a list of them; other values are accepted.
  void check_media_keys(const RecordJson& value);

  /// Adds a notice unless the record already has one of this kind.
  void add_notice(std::string kind, std::string example);

 private:
  void check_record_key(const std::string& key, const RecordJson& value, KeyRule rule, const RecordJson& turns,
                        const RecordContents& contents);
  void check_record_media_key(const std::string& key, const RecordJson& value, KeyRule rule,
                              const RecordContents& contents);
  bool is_mapped_column(const std::string& key) const;

  const std::map<std::string, std::string>& columns_;
  std::vector<Notice>& notices_;
};

/// Removes `ignored_keys` (data.ignore_keys) from a record, its turns and their content blocks.
/// Keys of the record that `columns` maps stay.
void remove_ignored_keys(RecordJson& record, const std::vector<std::string>& ignored_keys,
                         const std::map<std::string, std::string>& columns);

}  // namespace vlmtrain::io
