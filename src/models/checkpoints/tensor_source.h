#pragma once

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

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::nn {
struct Parameter;  // nn/weights/parameters.h
}  // namespace vlmtrain::nn

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

/// Returns a hash of the sizes, inodes and modification times of the *.safetensors files in a
/// folder. It changes when a file is written, added or removed.
uintmax_t hash_weight_files(const std::filesystem::path& folder);

/// A cache of values computed from the weight files of a folder, so that a process that builds
/// several models reads the files once. Entries of changed files are computed again. Thread-safe.
template <class Value>
class WeightFileCache {
 public:
  /// Returns the cached result of compute() for the weight files of a folder; calls it if there is
  /// no result for their current versions. Other threads wait meanwhile.
  template <class Compute>
  Value get_or_compute(const std::filesystem::path& folder, const Compute& compute) {
    const std::pair key(folder, hash_weight_files(folder));
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
  std::function<at::Tensor()> read;    ///< returns the tensor on the CPU
  std::function<void()> release = {};  ///< releases the file's mapped pages; may be empty
};

/// The texts of errors about a path without weights.
struct TensorSourceErrorMessages {
  std::string not_found_message;  ///< "is not a mask model; give …"
  std::string choose_file_hint;   ///< for a folder with several files: "give the file of SAM itself"
};

/// The weights of a model to assemble from, by name. Weights of a .pt or .pth file are kept in
/// memory; others are read on demand. Immutable.
class TensorSource {
 public:
  /// Opens the weights. `path` is a folder with config.json and model.safetensors or its shards, a
  /// .safetensors, .pt or .pth file, or a folder with one such file. Throws UserError (kBadData)
  /// for other paths and damaged files.
  TensorSource(const std::filesystem::path& path, const TensorSourceErrorMessages& messages);

  const std::filesystem::path& path() const { return path_; }
  /// Returns path() if it is a folder, else its parent: the folder that may have a config.json.
  std::filesystem::path folder() const;
  const std::map<std::string, StoredTensor>& all() const { return tensors_; }
  /// Returns a tensor, owned by this object; null if it does not exist.
  const StoredTensor* find(const std::string& name) const;
  /// Returns whether the name of any tensor starts with `prefix`.
  bool has_prefix(std::string_view prefix) const;

 private:
  template <class File>
  void add_tensors(File file);

  std::filesystem::path path_;
  std::map<std::string, StoredTensor> tensors_;
};

/// A function that returns the weight of a parameter from one source of an assembled model, named
/// as in the assembled checkpoint; nothing if the source does not have it.
using FindWeightFunction = std::function<std::optional<io::LazyTensor>(const nn::Parameter& parameter)>;

/// All weights of an assembled model.
struct CombinedWeights {
  io::LazyTensors weights;                               ///< tensors of its checkpoint, computed tables included
  std::vector<int64_t> num_tensors;                      ///< from each source, in the order of the sources
  int64_t num_random_tensors = 0;                        ///< tensors without a source
  std::set<std::string> randomly_initialized_modules{};  ///< first components of the names of these tensors

  int64_t bytes() const;  ///< total size of `weights`
};

/// Returns the weights of `model`, which may be on the meta device: each from the first source that
/// has it. Other weights are random with `seed`, in `dtype`. `sources` are called during the call
/// only; their tensors are read when they are written.
CombinedWeights combine_weights(const VisionLanguageModel& model, const std::vector<FindWeightFunction>& sources,
                                at::ScalarType dtype, uint64_t seed);

/// Writes the tensors to the checkpoint in `folder`, and logs the random ones with their `seed`.
void write_combined_weights(const CombinedWeights& combined_weights, uint64_t seed,
                            const std::filesystem::path& folder);

}  // namespace vlmtrain::models
