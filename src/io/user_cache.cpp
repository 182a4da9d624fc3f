#include "vlmtrain/io/user_cache.h"

#include <cstdlib>

namespace vlmtrain::io {

namespace fs = std::filesystem;

fs::path user_cache() {
  const auto folder_in = [](const char* variable) {
    const char* const value = std::getenv(variable);
    const fs::path folder(value == nullptr ? "" : value);
    return folder.is_absolute() ? folder : fs::path();
  };
  if (auto own = folder_in("VLMTRAIN_CACHE"); !own.empty()) return own;
  if (const auto cache = folder_in("XDG_CACHE_HOME"); !cache.empty()) return cache / "vlmtrain";
  if (const auto home = folder_in("HOME"); !home.empty()) return home / ".cache/vlmtrain";
  return {};
}

}  // namespace vlmtrain::io
