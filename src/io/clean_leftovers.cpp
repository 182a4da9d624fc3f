#include <sys/stat.h>

#include <ctime>
#include <optional>
#include <system_error>
#include <vector>

#include "io/temporary_name.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::io {
namespace fs = std::filesystem;
namespace {

constexpr std::time_t kForeignAgeSeconds = 86'400;

bool is_abandoned(const Temporary& temporary) {
  if (temporary.machine == this_machine()) {
    return !writer_is_alive(temporary);
  }
  struct stat status {};
  return lstat(temporary.path.c_str(), &status) == 0 && std::time(nullptr) - status.st_ctime > kForeignAgeSeconds;
}

// True where the folder is back under its name. rename() never replaces a folder that holds something, so a race with
// another process that cleans, or that commits, loses nothing.
bool bring_back(const Temporary& temporary) {
  if (temporary.machine == this_machine() && writer_is_alive(temporary)) {
    return false;
  }
  std::error_code error;
  if (fs::exists(fs::symlink_status(temporary.final_path, error))) {
    return false;
  }
  fs::rename(temporary.path, temporary.final_path, error);
  return !error;
}

std::vector<Temporary> temporaries_in(const fs::path& folder) {
  std::vector<Temporary> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (std::optional<Temporary> temporary = parse_temporary(entry->path())) {
      found.push_back(*std::move(temporary));
    }
  }
  return found;
}

}  // namespace

void clean_leftovers(const fs::path& folder) {
  for (const Temporary& temporary : temporaries_in(folder)) {
    if (temporary.kind == TemporaryKind::kSetAside && bring_back(temporary)) {
      continue;
    }
    if (is_abandoned(temporary)) {
      std::error_code ignored;
      fs::remove_all(temporary.path, ignored);
    }
  }
}

}  // namespace vlmtrain::io
