#include "vlmtrain/io/remove_directory.h"

#include <system_error>

#include "io/temporary_name.h"

namespace vlmtrain::io {

std::optional<Remains> remove_directory(const std::filesystem::path& path) {
  const auto old = parse_temporary(path);
  const bool was_renamed = old && old->kind == TemporaryKind::kGone;
  std::filesystem::path gone = was_renamed ? path : temporary_path(path, TemporaryKind::kGone);
  std::error_code error;
  if (!was_renamed) std::filesystem::rename(path, gone, error);
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  if (error) return Remains{path, error.message()};
  std::filesystem::remove_all(gone, error);
  if (error) return Remains{std::move(gone), error.message()};
  return std::nullopt;
}

}  // namespace vlmtrain::io
