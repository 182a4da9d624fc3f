#include "vlmtrain/io/user_cache.h"

#include <cstdlib>

namespace vlmtrain::io {

namespace fs = std::filesystem;

fs::path get_user_cache_folder() {
  const auto get_env_folder = [](const char* variable) {
    const char* const value = std::getenv(variable);
    const fs::path folder(value == nullptr ? "" : value);
    return folder.is_absolute() ? folder : fs::path();
  };
  if (auto override_folder = get_env_folder("VLMTRAIN_CACHE"); !override_folder.empty()) return override_folder;
  if (const auto cache = get_env_folder("XDG_CACHE_HOME"); !cache.empty()) return cache / "vlmtrain";
  if (const auto home = get_env_folder("HOME"); !home.empty()) return home / ".cache/vlmtrain";
  return {};
}

}  // namespace vlmtrain::io
