#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/record/media/record_media.h"
#include "io/record/object_marks.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// A converter of JSON values, in any of the formats of open_records(), to records. Thread-safe.
class RecordReader {
 public:
  /// `folder` is the folder of the data file, used for relative media paths if `settings` has no
  /// image_root.
  RecordReader(const RecordSettings& settings, const std::filesystem::path& folder);

  /// Converts a value to a record. Does not set Record::location. `fallback_id` is the id of a
  /// record without "id". Bytes of media are binary JSON values. Unread keys become notices or a
  /// problem (keys/record_keys.h). Does not throw for invalid records: they have a `problem`.
  Record read(RecordJson record_json, const std::string& fallback_id) const;

  /// Returns a hash of the settings and of the reader's version, for Records::version_hash().
  uint64_t version_hash() const;

 private:
  ImageRoot image_root_;
  std::map<std::string, std::string> columns_;
  std::vector<std::string> ignored_keys_;
  BoxSettings box_settings_;
  BoxTextFinder box_text_finder_;
};

}  // namespace vlmtrain::io
