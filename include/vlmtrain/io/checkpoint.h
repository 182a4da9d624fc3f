#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// The weights of a checkpoint in Hugging Face layout: `model.safetensors`, or `model.safetensors.index.json` and the
/// shards that it names. Where both are there the single file counts, as in transformers.
///
/// All shards are opened and checked at once, but no data is read. data_error where there are no weights, only pickled
/// ones, a shard is missing, or a tensor is not where the index says. Safe to use from several threads.
class CheckpointTensors {
 public:
  explicit CheckpointTensors(std::filesystem::path folder);

  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return shard_index_by_name_.contains(name); }
  /// See SafetensorsFile; data_error where there is no such tensor.
  const TensorInfo& info(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const;
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

/// The names of the tensors in `folder`, of the index alone where the weights are sharded; none where there are no
/// weights.
std::vector<std::string> read_checkpoint_tensor_names(const std::filesystem::path& folder);

constexpr int64_t kDefaultShardBytes = 5'000'000'000;

/// Writes the weights in Hugging Face layout into an existing folder (as a rule AtomicDirectory::path()): one file, or
/// shards of at most `max_shard_bytes`, filled in the order given, and their index. A tensor larger than that is a
/// shard of its own. run_error where the folder holds weights already: the new ones might be shadowed by them.
void write_checkpoint_tensors(const std::filesystem::path& folder, const NamedTensors& tensors,
                              int64_t max_shard_bytes = kDefaultShardBytes);

}  // namespace vlmtrain::io
