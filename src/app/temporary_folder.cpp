#include "app/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "vlmtrain-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw run_error("{}: no temporary folder can be made: {}; set TMPDIR to a folder with room", name,
                    std::strerror(errno));
  }
  path_ = name;
  cleanup_.emplace(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace vlmtrain::app
