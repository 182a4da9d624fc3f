#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>

namespace vlmtrain::report {

/// Calls `callback` with each JSON object of a file of JSON lines, in order. Skips lines that are
/// not objects or are truncated. Does nothing if the file does not exist. Throws UserError
/// (kBadData) if the path is not a regular file.
void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json& object)>& callback);

/// A reader of the JSON lines of a growing file.
class AppendedJsonLines {
 public:
  explicit AppendedJsonLines(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls `callback` with each object among the complete lines that were appended since the last
  /// call. Skips other lines. A last line without line break is read once it is complete. Does
  /// nothing if the file does not exist.
  void read(const std::function<void(const nlohmann::json& object)>& callback);

  /// Returns whether the file was replaced or truncated, so that what was read is obsolete.
  bool was_replaced() const;

 private:
  std::filesystem::path path_;
  std::streamoff read_bytes_ = 0;
  ino_t inode_ = 0;
};

}  // namespace vlmtrain::report
