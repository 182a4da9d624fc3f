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

/// Makes records of JSON values. Thread-safe.
class RecordReader {
 public:
  /// `folder`: of the data set's file.
  RecordReader(const RecordSettings& settings, const std::filesystem::path& folder);

  /// The record that a value describes, its `location` left out. `fallback_id` is for those without an "id". Bytes of
  /// media are JSON's binary values. Keys that nothing reads are the record's notices, or its problem (record_keys.h).
  Record read(nlohmann::json value, const std::string& fallback_id) const;

  /// A hash of what records depend on beside their file.
  uint64_t stamp() const;

 private:
  ImageRoot root_;
  std::map<std::string, std::string> columns_;
  std::vector<std::string> ignore_keys_;
};

}  // namespace vlmtrain::io
