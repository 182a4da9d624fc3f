#include "vlmtrain/io/remove_directory.h"

#include <system_error>

#include "io/temporary_name.h"

namespace vlmtrain::io {

std::optional<RemovalFailure> remove_directory(const std::filesystem::path& path) {
  const auto temp = parse_temp_path(path);
  const bool was_renamed = temp && temp->kind == TempPathKind::kRemoving;
  std::filesystem::path renamed_path = was_renamed ? path : make_temp_path(path, TempPathKind::kRemoving);
  std::error_code error;
  if (!was_renamed) std::filesystem::rename(path, renamed_path, error);
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  if (error) return RemovalFailure{path, error.message()};
  std::filesystem::remove_all(renamed_path, error);
  if (error) return RemovalFailure{std::move(renamed_path), error.message()};
  return std::nullopt;
}

}  // namespace vlmtrain::io
