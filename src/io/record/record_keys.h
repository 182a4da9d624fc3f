#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/record/key_rules.h"
#include "vlmtrain/io/conversation.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// What of a record was read, by which keys are judged that nothing reads.
struct RecordContents {
  bool has_images = false;  ///< or volumes
  bool has_videos = false;
  bool has_frames = false;  ///< a video whose frame rate the record may have
  std::span<const Turn> turns = {};
};

/// Checks the keys of one record that nothing reads (key_rules.h). What alters learning is a data error that names the
/// key and the remedy; all else that has a value is a notice.
class RecordKeyChecker {
 public:
  /// The names that `columns` maps are read.
  RecordKeyChecker(const std::map<std::string, std::string>& columns, std::vector<Notice>& notices)
      : columns_(columns), notices_(notices) {}

  /// REQUIRES: `record` has been read: what was read only once is null (record_columns.h). `turns` is the list of
  /// turns.
  void check_record(const nlohmann::json& record, const nlohmann::json& turns, const RecordContents& contents);
  /// Throws for an image or a video of a record under a key that is not read, where it has none of that kind. For
  /// records that cannot be used for another reason, of which this may be the cause.
  void check_record_media(const nlohmann::json& record, const RecordContents& contents);
  /// Returns whether the turn has media of its own.
  bool check_turn(const nlohmann::json& turn, size_t turn_number, bool is_answer);
  /// `type`: "text", "image", "video" or "volume"; `has_frames`: its frame rate is read.
  void check_block(const nlohmann::json& block, std::string_view type, size_t turn_number, bool is_answer,
                   bool has_frames);
  /// Checks objects that stand for media: `value` is one, a list of them, or anything else.
  void check_media(const nlohmann::json& value);

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

/// Removes the keys `ignored_keys` (data.ignore_keys) from a record, its turns and their content blocks. Keys that
/// `columns` maps stay.
void remove_ignored_keys(nlohmann::json& record, const std::vector<std::string>& ignored_keys,
                         const std::map<std::string, std::string>& columns);

}  // namespace vlmtrain::io
