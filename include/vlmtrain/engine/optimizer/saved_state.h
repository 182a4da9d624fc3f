#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::engine {

/// Returns the name of a shard of `tensor` that begins at element `first` of the flattened tensor:
/// "first_moment.NAME@512".
std::string make_shard_name(std::string_view tensor, int64_t first);
/// Parses a name from make_shard_name(). Returns the name of the tensor and the first element;
/// nullopt for other names.
std::optional<std::pair<std::string, int64_t>> parse_shard_name(std::string_view name);

/// A tensor that is read on demand.
struct LazyStateTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> read;  ///< returns the tensor, of `dtype` and `shape`
};

/// A saved optimizer state (Optimizer::state()): whole tensors, or shards of all ranks of a run, named
/// by make_shard_name(). Immutable.
class SavedOptimizerState {
 public:
  /// Shares the storage of the tensors.
  // NOLINTNEXTLINE(google-explicit-constructor): a map of tensors is a valid state
  SavedOptimizerState(const std::map<std::string, at::Tensor>& tensors);
  /// Does not read the tensors. Each call of read_range() reads the tensors that it needs.
  explicit SavedOptimizerState(const std::map<std::string, LazyStateTensor>& tensors);

  /// Returns whether any part of the tensor was saved.
  bool contains(const std::string& tensor) const { return shards_.contains(tensor); }
  /// Returns the names of all tensors.
  std::vector<std::string> names() const;
  /// Returns a tensor that was saved whole, or null if it was saved in shards or not at all. A lazy
  /// tensor is on the meta device: it has a shape and dtype, but no values.
  const at::Tensor* find_unsharded_tensor(const std::string& tensor) const;

  /// Returns elements [first, first + count) of the flattened tensor, [count]. Returns nullopt if
  /// the tensor does not have `total` elements of type `dtype`, or if a shard is missing.
  std::optional<at::Tensor> read_range(const std::string& tensor, int64_t first, int64_t count, int64_t total,
                                       at::ScalarType dtype) const;

 private:
  struct SavedShard {
    int64_t first;
    at::Tensor values;
    bool is_unsharded;
    std::function<at::Tensor()> read;  // empty: `values` is loaded
  };
  void add(const std::string& name, const at::Tensor& values, std::function<at::Tensor()> read);
  void sort_shards();

  std::map<std::string, std::vector<SavedShard>> shards_;  // by tensor, in ascending order of `first`
};

}  // namespace vlmtrain::engine
