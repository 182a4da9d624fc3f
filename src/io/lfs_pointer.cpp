#include "vlmtrain/io/lfs_pointer.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

bool is_git_lfs_pointer(std::string_view first_bytes) {
  return first_bytes.starts_with("version https://git-lfs.github.com/spec/");
}

void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view first_bytes) {
  if (!is_git_lfs_pointer(first_bytes)) return;
  throw data_error(
      "{}: is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder, or download the file",
      path.string());
}

}  // namespace vlmtrain::io
