#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// The weights of a checkpoint in Hugging Face layout: `model.safetensors`, or
/// `model.safetensors.index.json` with its shards. The single file has priority, as in
/// transformers. Thread-safe.
class CheckpointTensors {
 public:
  /// Opens and checks all shards without reading tensor data. Throws data_error if there are no
  /// weights or only pickled ones, if a shard is missing, or if a tensor is not in the shard that
  /// the index names.
  explicit CheckpointTensors(std::filesystem::path folder);

  /// Returns the names of all tensors.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return shard_index_by_name_.contains(name); }
  // The functions below equal those of SafetensorsFile. They throw data_error for an unknown
  // tensor.
  /// Returns dtype, shape and offsets of a tensor.
  const TensorInfo& info(const std::string& name) const;
  /// Returns a CPU tensor in mapped memory.
  at::Tensor tensor(const std::string& name) const;
  /// Returns the pages of a tensor to the system.
  void release(const std::string& name) const;

 private:
  void open_single(const std::filesystem::path& file);
  void open_sharded(const std::filesystem::path& index);
  const SafetensorsFile& find_shard(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> shards_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> shard_index_by_name_;
};

/// Returns the names of the tensors in `folder`. Reads only the index of sharded weights. Returns
/// an empty list if there are no weights.
std::vector<std::string> read_checkpoint_tensor_names(const std::filesystem::path& folder);

/// Default size of a shard, as `max_shard_size="5GB"` of transformers' save_pretrained.
constexpr int64_t kDefaultShardBytes = 5'000'000'000;

/// Writes weights in Hugging Face layout into an existing folder, usually AtomicDirectory::path():
/// one file, or shards of at most `max_shard_bytes` in the given order and their index. A larger
/// tensor gets its own shard. Throws run_error if the folder already has weights, because readers
/// might prefer those.
void write_checkpoint_tensors(const std::filesystem::path& folder, const NamedTensors& tensors,
                              int64_t max_shard_bytes = kDefaultShardBytes);
/// Same for lazy tensors.
void write_checkpoint_tensors(const std::filesystem::path& folder, const LazyTensors& tensors, int64_t max_shard_bytes);

}  // namespace vlmtrain::io
