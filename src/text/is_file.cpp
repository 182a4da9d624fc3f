#include "text/is_file.h"

#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"

namespace vlmtrain::text {

bool is_file(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return false;
  if (fs::is_regular_file(path, error)) return true;
  const std::string_view kind =
      fs::exists(path, error) ? describe_non_regular_file(path) : "a link to a file that is not there";
  throw data_error("{}: is {}; a file is wanted here: fetch the checkpoint again", path.string(), kind);
}

}  // namespace vlmtrain::text
