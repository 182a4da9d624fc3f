#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>

namespace vlmtrain::report {

/// Hands over the objects of a file of JSON lines, one at a time and in their order. A line that is none, or that a
/// kill cut off, is left out. Nothing where there is no file. Throws UserError (kBadData) where it is something else.
void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json& object)>& callback);

/// The JSON lines of a file that grows.
class AppendedJsonLines {
 public:
  explicit AppendedJsonLines(std::filesystem::path path) : path_(std::move(path)) {}

  /// Hands over the objects among the whole lines that were added since the last call, one at a time. A line that is
  /// not one is left out, and so is a last line without its end, until it has one. Nothing where there is no file.
  void read(const std::function<void(const nlohmann::json& object)>& callback);

  /// Whether the file is no longer the one that was read, or shorter: what was read is to be forgotten.
  bool was_replaced() const;

 private:
  std::filesystem::path path_;
  std::streamoff read_bytes_ = 0;
  ino_t inode_ = 0;
};

}  // namespace vlmtrain::report
