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
  uint64_t fingerprint = 0;          ///< of the record, its files' contents apart
  uint64_t file_state = 0;           ///< of its files
  std::vector<std::string> files{};  ///< that it names
  SampleShape shape{};
  int64_t making_bytes = 0;  ///< Sample::making_bytes
  std::optional<Shrunk> shrunk{};
  std::string id{};
  std::string task{};
};

/// By index of the sample; nothing where there is none.
using CachedShapes = std::vector<std::optional<CachedShape>>;

/// Tells a record from what it was, by its content and by the names of its files.
uint64_t fingerprint_of(const io::Record& record);
/// The files and folders of a record's media, those apart that the data set itself carries.
std::vector<std::string> files_of(const io::Record& record);
/// Tells files from what they were, and the files in folders, by their names, sizes and times. Opens no file.
uint64_t state_of(const std::vector<std::string>& files);

struct OutlineCache {
  uint64_t stamp = 0;  ///< io::Records::stamp() of the data set that it was made for
  CachedShapes shapes{};
};

/// What write_outline_cache wrote with the same key; nothing at all where the file is missing, damaged or of another
/// key.
OutlineCache read_outline_cache(const std::filesystem::path& file, const std::string& key);

/// Atomically. A file that cannot be written is a line in the log, no error.
void write_outline_cache(const std::filesystem::path& file, const std::string& key, uint64_t stamp,
                         const CachedShapes& shapes);

}  // namespace vlmtrain::data
