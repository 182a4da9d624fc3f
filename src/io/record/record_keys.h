#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/record/key_rules.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Contents of a record that decide how its unread keys are judged.
struct RecordContents {
  bool has_images = false;  ///< or volumes
  bool has_videos = false;
  bool has_frames = false;  ///< a video of frames, which uses the record's frame rate
  std::span<const Turn> turns = {};
};

/// Checker for the unread keys of one record (key_rules.h). A key that alters learning throws
/// data_error that names it and a suggestion. Any other key with a value becomes a notice.
class RecordKeyChecker {
 public:
  /// Names in `columns` count as read. Both references must outlive the object.
  RecordKeyChecker(const std::map<std::string, std::string>& columns, std::vector<Notice>& notices)
      : columns_(columns), notices_(notices) {}

  /// Checks the keys of a record. `turns` is its list of turns. REQUIRES: `record` has been read,
  /// so that converted values are null (record_columns.h).
  void check_record(const nlohmann::json& record, const nlohmann::json& turns, const RecordContents& contents);
  /// Throws if a record has an image or a video only under a key that is not read. For records with
  /// another problem, which this may cause.
  void check_record_media(const nlohmann::json& record, const RecordContents& contents);
  /// Checks the keys of a turn. Returns true if the turn has media of its own.
  bool check_turn(const nlohmann::json& turn, size_t turn_number, bool is_answer);
  /// Checks the keys of a content block. `type` is "text", "image", "video" or "volume";
  /// `has_frames`: its frame rate is used.
  void check_block(const nlohmann::json& block, std::string_view type, size_t turn_number, bool is_answer,
                   bool has_frames);
  /// Checks the keys of media objects. `value` is one, a list of them, or any other value.
  void check_media(const nlohmann::json& value);

  /// Adds a notice unless the record already has one of this kind.
  void add_notice(std::string kind, std::string example);

 private:
  void check_record_key(const std::string& key, const nlohmann::json& value, KeyRule rule, const nlohmann::json& turns,
                        const RecordContents& contents);
  void check_record_media_key(const std::string& key, const nlohmann::json& value, KeyRule rule,
                              const RecordContents& contents);
  bool is_mapped_column(const std::string& key) const;

  const std::map<std::string, std::string>& columns_;
  std::vector<Notice>& notices_;
};

/// Removes `ignored_keys` (data.ignore_keys) from a record, its turns and their content blocks,
/// except keys that `columns` maps.
void remove_ignored_keys(nlohmann::json& record, const std::vector<std::string>& ignored_keys,
                         const std::map<std::string, std::string>& columns);

}  // namespace vlmtrain::io
