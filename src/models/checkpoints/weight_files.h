#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

namespace vlmtrain::models {

/// Returns a number that changes when a file of weights in the folder does: numbers, sizes and times, no content.
uintmax_t compute_weights_stamp(const std::filesystem::path& folder);

/// What a process has found out about the weights of folders, which it builds models of many times. Thread-safe.
template <class Value>
class WeightFileCache {
 public:
  /// Returns what `compute` returned for these files.
  template <class Compute>
  Value get(const std::filesystem::path& folder, const Compute& compute) {
    const std::pair key(folder, compute_weights_stamp(folder));
    const std::scoped_lock lock(mutex_);
    const auto it = cache_.find(key);
    return it != cache_.end() ? it->second : cache_.emplace(key, compute()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::filesystem::path, uintmax_t>, Value> cache_;
};

}  // namespace vlmtrain::models
