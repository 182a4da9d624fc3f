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

void sync_tree(const fs::path& root, const fs::path& named) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_symlink() && (entry.is_regular_file() || entry.is_directory())) {
      sync_path(entry.path(), named);
    }
  }
  sync_path(root, named);
}

// The committed folder stands; what could not be removed of the old one is left to clean_leftovers().
void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

}  // namespace

AtomicDirectory::AtomicDirectory(fs::path final_path)
    : final_(without_trailing_slash(std::move(final_path))), temporary_(temporary_path(final_, TemporaryKind::kNew)) {
  std::error_code error;
  if (fs::exists(final_, error) && !fs::is_directory(final_, error)) {
    throw run_error("cannot write the folder {}: a file has that name; remove it or choose another", final_.string());
  }
  note_unfinished(temporary_, [&] { fs::create_directories(temporary_, error); });
  if (error) {
    forget_unfinished(temporary_);
    throw write_error(final_, error.value(), 0);
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (!temporary_.empty()) {
    remove_quietly(temporary_);
    forget_unfinished(temporary_);
  }
}

void AtomicDirectory::commit() {
  VLMTRAIN_CHECK(!temporary_.empty(), "{} was committed before", final_.string());
  sync_tree(temporary_, final_);
  std::error_code error;
  fs::path old;
  if (!fs::exists(fs::symlink_status(final_, error))) {
    if (rename(temporary_.c_str(), final_.c_str()) != 0) {
      throw write_error(final_, errno, 0);
    }
  } else if (exchange_names(temporary_, final_)) {
    old = temporary_;
  } else {
    old = replace_in_two_steps(temporary_, final_);
  }
  forget_unfinished(std::exchange(temporary_, {}));
  sync_path(folder_of(final_), final_);
  if (!old.empty()) {
    remove_quietly(old);
  }
}

}  // namespace vlmtrain::io
