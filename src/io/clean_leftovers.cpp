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

constexpr std::time_t kRemoteMaxAgeSeconds = 86'400;

bool is_abandoned(const TempPath& temp) {
  if (temp.machine == get_machine_id()) {
    return !is_writer_alive(temp);
  }
  struct stat status {};
  return lstat(temp.path.c_str(), &status) == 0 && std::time(nullptr) - status.st_ctime > kRemoteMaxAgeSeconds;
}

// True where the folder is back under its name. rename() never replaces a folder that holds something, so a race with
// another process that cleans, or that commits, loses nothing.
bool restore_backup(const TempPath& temp) {
  if (temp.machine == get_machine_id() && is_writer_alive(temp)) {
    return false;
  }
  std::error_code error;
  if (fs::exists(fs::symlink_status(temp.final_path, error))) {
    return false;
  }
  fs::rename(temp.path, temp.final_path, error);
  return !error;
}

std::vector<TempPath> list_temporaries(const fs::path& folder) {
  std::vector<TempPath> temporaries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (std::optional<TempPath> temp = parse_temp_path(entry->path())) {
      temporaries.push_back(*std::move(temp));
    }
  }
  return temporaries;
}

}  // namespace

void clean_up_temporaries(const fs::path& folder) {
  for (const TempPath& temp : list_temporaries(folder)) {
    if (temp.kind == TempPathKind::kBackup && restore_backup(temp)) {
      continue;
    }
    if (is_abandoned(temp)) {
      std::error_code ignored;
      fs::remove_all(temp.path, ignored);
    }
  }
}

}  // namespace vlmtrain::io
