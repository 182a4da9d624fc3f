#include "vlmtrain/io/unfinished.h"

#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "io/temporary_name.h"
#include "io/unfinished_paths.h"

namespace vlmtrain::io {

namespace {

struct TempPathRegistry {
  std::mutex mutex;
  std::set<std::filesystem::path> paths;
};

/// Never destroyed: a process may end in the middle of its writers.
TempPathRegistry& temp_path_registry() {
  static auto* const registry = new TempPathRegistry;
  return *registry;
}

/// Renamed first: a writer that goes on cannot give half a folder its final name.
void rename_and_remove(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path renamed_path = make_temp_path(path.parent_path() / "unfinished", TempPathKind::kNew);
  std::filesystem::rename(path, renamed_path, error);
  if (!error) std::filesystem::remove_all(renamed_path, error);
}

}  // namespace

void register_temp_path(const std::filesystem::path& path, const std::function<void()>& create) {
  auto& [mutex, paths] = temp_path_registry();
  const std::lock_guard lock(mutex);
  paths.insert(path);
  create();
}

void unregister_temp_path(const std::filesystem::path& path) {
  auto& [mutex, paths] = temp_path_registry();
  const std::lock_guard lock(mutex);
  paths.erase(path);
}

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
