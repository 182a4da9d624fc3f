#include "vlmtrain/base/file_kind.h"

#include <system_error>

namespace vlmtrain {

std::string_view kind_if_no_file(const std::filesystem::path& path) {
  using std::filesystem::file_type;
  std::error_code unknown;
  switch (std::filesystem::status(path, unknown).type()) {
    case file_type::directory:
      return "a folder";
    case file_type::fifo:
      return "a named pipe";
    case file_type::socket:
      return "a socket";
    case file_type::block:
    case file_type::character:
      return "a device";
    default:
      return {};
  }
}

}  // namespace vlmtrain
