#include "vlmtrain/io/temp_cleanup.h"

#include <system_error>
#include <utility>

#include "io/files/temp_path.h"

namespace vlmtrain::io {

namespace {

/// Renamed first: a writer that goes on cannot give half a folder its final name.
void rename_and_remove(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path renamed_path = make_temp_path(path.parent_path() / "unfinished", TempPathKind::kNew);
  std::filesystem::rename(path, renamed_path, error);
  if (!error) std::filesystem::remove_all(renamed_path, error);
}

}  // namespace

TempFileCleanup::TempFileCleanup(std::filesystem::path path) : path_(std::move(path)) {
  register_temp_path(path_, [] {});
}

TempFileCleanup::~TempFileCleanup() {
  unregister_temp_path(path_);
}

std::unique_lock<std::mutex> remove_temp_files() {
  auto& [mutex, paths] = temp_path_registry();
  std::unique_lock lock(mutex);
  for (const auto& path : paths) rename_and_remove(path);
  return lock;
}

}  // namespace vlmtrain::io
