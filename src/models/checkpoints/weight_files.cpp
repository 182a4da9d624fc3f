#include "models/checkpoints/weight_files.h"

#include <string>
#include <system_error>

namespace vlmtrain::models {

uintmax_t stamp_of_weights(const std::filesystem::path& folder) {
  uintmax_t stamp = 0;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().string().find(".safetensors") == std::string::npos) continue;
    std::error_code unknown;
    const auto written = std::filesystem::last_write_time(entry->path(), unknown).time_since_epoch().count();
    // A sum: the order of a folder's entries is not fixed.
    stamp += std::filesystem::file_size(entry->path(), unknown) * 31 + static_cast<uintmax_t>(written);
  }
  return stamp;
}

}  // namespace vlmtrain::models
