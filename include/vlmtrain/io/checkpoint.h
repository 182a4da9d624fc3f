#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// The weights of a checkpoint in Hugging Face layout: `model.safetensors`, or
/// `model.safetensors.index.json` with its shards. The single file has priority, as in
/// transformers. Thread-safe.
class CheckpointTensors {
 public:
  /// Maps all shards and checks their headers without reading tensor data. Throws data_error if
  /// `folder` has no weights or only pickled weights, if a shard is missing or invalid, or if a
  /// tensor is not in the shard that the index names.
  explicit CheckpointTensors(std::filesystem::path folder);

  /// Returns the names of all tensors: in the order of the data for a single file, else first those
  /// of the index by name, then those that only the shards have.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return shard_index_by_name_.contains(name); }
  // The functions below have the contract of the same functions of SafetensorsFile. They throw
  // data_error for an unknown tensor.
  /// Returns dtype, shape and offsets of a tensor.
  const TensorInfo& info(const std::string& name) const;
  /// Returns a CPU tensor in mapped memory. It may outlive this object.
  at::Tensor tensor(const std::string& name) const;
  /// Returns the pages of a tensor to the system, after the caller has copied the tensor.
  void release(const std::string& name) const;

 private:
  void open_single_file(const std::filesystem::path& file);
  void open_shards(const std::filesystem::path& index);
  const SafetensorsFile& find_shard(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> shards_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> shard_index_by_name_;
};

/// Returns the names of the tensors in `folder`. For sharded weights, reads only the index, so the
/// shards may be missing. Returns an empty list if `folder` has no weights. Throws data_error if
/// the file or the index is invalid.
std::vector<std::string> read_checkpoint_tensor_names(const std::filesystem::path& folder);

/// Default size of a shard, as `max_shard_size="5GB"` of transformers' save_pretrained.
constexpr int64_t kDefaultMaxShardBytes = 5'000'000'000;

/// Writes weights in Hugging Face layout into an existing folder, usually AtomicDirectory::path():
/// one file, or an index and shards of at most `max_shard_bytes`, filled in the given order. A
/// larger tensor gets its own shard. Throws run_error if the folder already has weights, because
/// readers might prefer those, or if the disk has too little space. REQUIRES: max_shard_bytes > 0;
/// names are unique; tensors are dense and safetensors supports their dtypes.
void write_checkpoint_tensors(const std::filesystem::path& folder, const NamedTensors& tensors,
                              int64_t max_shard_bytes = kDefaultMaxShardBytes);
/// Same for lazy tensors. Only one of them is in host memory at a time.
void write_checkpoint_tensors(const std::filesystem::path& folder, const LazyTensors& tensors, int64_t max_shard_bytes);

/// Returns one sentence for each oddity of the weight files, for a warning: shards and their index
/// next to model.safetensors and shards that the index does not name, which are not read, and
/// tensors that occur in two shards. transformers selects the same files. Throws data_error if a
/// shard is invalid.
std::vector<std::string> list_weight_file_warnings(const std::filesystem::path& folder);

/// Describes the weights of a folder that CheckpointTensors cannot read, such as shards without an
/// index or GGUF files, with a suggestion. Returns "" if there are none. REQUIRES: the folder has
/// neither model.safetensors nor an index.
std::string describe_unsupported_weights(const std::filesystem::path& folder);

}  // namespace vlmtrain::io
