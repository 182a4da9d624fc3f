#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"

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

/// A tensor of a file.
struct StoredTensor {
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  std::function<at::Tensor()> read;
  std::function<void()> release = {};  ///< gives the file's pages back; may be empty
};

/// What an error says of a place that holds no such weights.
struct TensorSourceMessages {
  std::string not_found;    ///< "is no mask model; give …"
  std::string choose_file;  ///< what to name where a folder has several files: "give the file of SAM itself"
};

/// The weights of a model that others have trained, by name. Those of a .pt or .pth file are in memory, others are read
/// one at a time.
class TensorSource {
 public:
  /// `path`: a folder with config.json and model.safetensors, or shards of it; a file .safetensors, .pt or .pth; a
  /// folder with one such file. Throws UserError (kBadData) where it is none of these, or damaged.
  TensorSource(const std::filesystem::path& path, const TensorSourceMessages& messages);

  const std::filesystem::path& path() const { return path_; }
  /// Where a config.json would lie.
  std::filesystem::path folder() const;
  const std::map<std::string, StoredTensor>& all() const { return tensors_; }
  /// Null where there is no such tensor.
  const StoredTensor* find(const std::string& name) const;
  bool has_prefix(std::string_view prefix) const;

 private:
  template <class File>
  void add_tensors(File file);

  std::filesystem::path path_;
  std::map<std::string, StoredTensor> tensors_;
};

/// A parameter's weight in one of the parts that a model is put together from, under the checkpoint's name; nothing
/// where the part has none.
using WeightSource = std::function<std::optional<io::LazyTensor>(const nn::Parameter& parameter)>;

/// All weights of a model that is put together.
struct CombinedWeights {
  io::LazyTensors weights;                 ///< as its checkpoint has them, tables that are computed included
  std::vector<int64_t> num_tensors;        ///< tensors of each part
  int64_t num_random_tensors = 0;          ///< tensors that no part has
  std::set<std::string> random_modules{};  ///< the modules that those are in

  int64_t bytes() const;
};

/// Of `model`, which may be on the meta device: each from the first part that has it, else at random from `seed`, in
/// `dtype`.
CombinedWeights combine_weights(const VisionLanguageModel& model, const std::vector<WeightSource>& sources,
                                at::ScalarType dtype, uint64_t seed);

}  // namespace vlmtrain::models
