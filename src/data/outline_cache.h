#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/shape.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A sample's shape and names, and what they were found on.
struct CachedShape {
  uint64_t fingerprint = 0;
  SampleShape shape;
  int64_t making_bytes = 0;  ///< Sample::making_bytes
  std::string id{};
  std::string task{};
};

/// By index of the sample; nothing where there is none.
using CachedShapes = std::vector<std::optional<CachedShape>>;

/// Tells a record and the files that it names from what they were: by the record's content and by the files' names,
/// sizes and times. Opens no file.
uint64_t fingerprint_of(const io::Record& record);

/// What write_outline_cache wrote with the same key; nothing at all where the file is missing, damaged or of another
/// key.
CachedShapes read_outline_cache(const std::filesystem::path& file, const std::string& key);

/// Atomically. A file that cannot be written is a line in the log, no error.
void write_outline_cache(const std::filesystem::path& file, const std::string& key, const CachedShapes& shapes);

}  // namespace vlmtrain::data
