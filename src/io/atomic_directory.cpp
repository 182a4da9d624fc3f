#include <stdio.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "io/replace_directory.h"
#include "io/temporary_name.h"
#include "io/unfinished_paths.h"
#include "io/write_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::io {
namespace fs = std::filesystem;
namespace {

// "runs/step-1/" names the same folder as "runs/step-1", but its last component is empty.
fs::path without_trailing_slash(fs::path path) {
  path = path.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void sync_tree(const fs::path& root, const fs::path& reported_path) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_symlink() && (entry.is_regular_file() || entry.is_directory())) {
      sync_to_disk(entry.path(), reported_path);
    }
  }
  sync_to_disk(root, reported_path);
}

// The committed folder stands; what could not be removed of the old one is left to clean_up_temporaries().
void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

}  // namespace

AtomicDirectory::AtomicDirectory(fs::path final_path)
    : final_path_(without_trailing_slash(std::move(final_path))),
      temp_path_(make_temp_path(final_path_, TempPathKind::kNew)) {
  std::error_code error;
  if (fs::exists(final_path_, error) && !fs::is_directory(final_path_, error)) {
    throw run_error("cannot write the folder {}: a file has that name; remove it or choose another",
                    final_path_.string());
  }
  register_temp_path(temp_path_, [&] { fs::create_directories(temp_path_, error); });
  if (error) {
    unregister_temp_path(temp_path_);
    throw write_error(final_path_, error.value(), 0);
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (!temp_path_.empty()) {
    remove_quietly(temp_path_);
    unregister_temp_path(temp_path_);
  }
}

void AtomicDirectory::commit() {
  VLMTRAIN_CHECK(!temp_path_.empty(), "{} was committed before", final_path_.string());
  sync_tree(temp_path_, final_path_);
  std::error_code error;
  fs::path previous;
  if (!fs::exists(fs::symlink_status(final_path_, error))) {
    if (rename(temp_path_.c_str(), final_path_.c_str()) != 0) {
      throw write_error(final_path_, errno, 0);
    }
  } else if (exchange_names(temp_path_, final_path_)) {
    previous = temp_path_;
  } else {
    previous = replace_in_two_steps(temp_path_, final_path_);
  }
  unregister_temp_path(std::exchange(temp_path_, {}));
  sync_to_disk(get_parent_folder(final_path_), final_path_);
  if (!previous.empty()) {
    remove_quietly(previous);
  }
}

}  // namespace vlmtrain::io
