#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/record/media_slots.h"
#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::io {

/// A parser from JSON values to records. Thread-safe.
class RecordReader {
 public:
  /// `folder` is the folder of the data file.
  RecordReader(const RecordSettings& settings, const std::filesystem::path& folder);

  /// Returns the record of a value, without its `location`. `fallback_id` is used without an "id".
  /// Bytes of media are binary JSON values. Unread keys become notices or a problem
  /// (record_keys.h).
  Record read(nlohmann::json value, const std::string& fallback_id) const;

  /// Returns a hash of everything except the file that the records depend on.
  uint64_t stamp() const;

 private:
  ImageRoot root_;
  std::map<std::string, std::string> columns_;
  std::vector<std::string> ignore_keys_;
};

}  // namespace vlmtrain::io
