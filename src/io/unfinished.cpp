#include "vlmtrain/io/unfinished.h"

#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "io/temporary_name.h"
#include "io/unfinished_paths.h"

namespace vlmtrain::io {

namespace {

struct UnfinishedPaths {
  std::mutex mutex;
  std::set<std::filesystem::path> paths;
};

/// Never destroyed: a process may end in the middle of its writers.
UnfinishedPaths& unfinished() {
  static auto* const all = new UnfinishedPaths;
  return *all;
}

/// Renamed first: a writer that goes on cannot give half a folder its final name.
void take_away(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path gone = temporary_path(path.parent_path() / "unfinished", TemporaryKind::kNew);
  std::filesystem::rename(path, gone, error);
  if (!error) std::filesystem::remove_all(gone, error);
}

}  // namespace

void note_unfinished(const std::filesystem::path& path, const std::function<void()>& create) {
  auto& [mutex, paths] = unfinished();
  const std::lock_guard lock(mutex);
  paths.insert(path);
  create();
}

void forget_unfinished(const std::filesystem::path& path) {
  auto& [mutex, paths] = unfinished();
  const std::lock_guard lock(mutex);
  paths.erase(path);
}

Unfinished::Unfinished(std::filesystem::path path) : path_(std::move(path)) {
  note_unfinished(path_, [] {});
}

Unfinished::~Unfinished() {
  forget_unfinished(path_);
}

std::unique_lock<std::mutex> remove_unfinished() {
  auto& [mutex, paths] = unfinished();
  std::unique_lock lock(mutex);
  for (const auto& path : paths) take_away(path);
  return lock;
}

}  // namespace vlmtrain::io
