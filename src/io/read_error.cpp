#include "io/read_error.h"

#include <cerrno>
#include <system_error>

#include "vlmtrain/io/hub_name.h"

namespace vlmtrain::io {

UserError read_error(const std::filesystem::path& path, int error) {
  // Nothing is wrong with the file.
  if (error == ENOMEM || error == EMFILE || error == ENFILE) {
    return run_error("cannot read {}: {}; raise the process's limits (ulimit -v, ulimit -n), or free what others have",
                     path.string(), std::generic_category().message(error));
  }
  const auto hint = [&]() -> std::string {
    if (error != ENOENT) return "check the path and its permissions";
    if (path.string().starts_with("~")) return "the shell replaces ~ only where a word begins; write the folder out";
    if (path.extension().empty() && is_hub_name(path.string())) {
      return "is it a name of the Hugging Face Hub? Nothing is downloaded: fetch it first (`hf download`), then give "
             "the file";
    }
    return "check the path and its permissions";
  };
  return data_error("cannot read {}: {}; {}", path.string(), std::generic_category().message(error), hint());
}

}  // namespace vlmtrain::io
