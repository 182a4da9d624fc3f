#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

namespace vlmtrain::models {

/// Returns a number that changes when a file of weights in the folder does: numbers, sizes and times, no content.
uintmax_t stamp_of_weights(const std::filesystem::path& folder);

/// What a process has found out about the weights of folders, which it builds models of many times. Thread-safe.
template <class Finding>
class WeightFindings {
 public:
  /// Returns what `find` returned for these files.
  template <class Find>
  Finding get(const std::filesystem::path& folder, const Find& find) {
    const std::pair key(folder, stamp_of_weights(folder));
    const std::scoped_lock lock(mutex_);
    const auto found = known_.find(key);
    return found != known_.end() ? found->second : known_.emplace(key, find()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::filesystem::path, uintmax_t>, Finding> known_;
};

}  // namespace vlmtrain::models
