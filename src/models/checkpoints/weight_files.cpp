#include "models/checkpoints/weight_files.h"

#include <sys/stat.h>

#include <string>
#include <system_error>

namespace vlmtrain::models {

uintmax_t compute_weights_stamp(const std::filesystem::path& folder) {
  uintmax_t stamp = 0;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().string().find(".safetensors") == std::string::npos) continue;
    struct stat file {};
    if (stat(entry->path().c_str(), &file) != 0) continue;
    // A sum: the order of a folder's entries is not fixed.
    stamp += static_cast<uintmax_t>(file.st_size) * 31 + static_cast<uintmax_t>(file.st_ino) * 17 +
             static_cast<uintmax_t>(file.st_mtim.tv_sec) * 1'000'000'000 + static_cast<uintmax_t>(file.st_mtim.tv_nsec);
  }
  return stamp;
}

}  // namespace vlmtrain::models
