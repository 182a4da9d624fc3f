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

/// "first_moment.NAME@512": of tensor first_moment.NAME, flattened, what begins with element 512.
std::string make_shard_name(std::string_view tensor, int64_t first);
/// The tensor's name, and where the piece begins; nothing where the name is not that of a piece.
std::optional<std::pair<std::string, int64_t>> parse_shard_name(std::string_view name);

/// A tensor that is read when it is asked for.
struct LazyTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> read;
};

/// An optimizer's state as it was saved, whole tensors or pieces by several ranks (AdamW::state()).
class SavedOptimizerState {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): by names, as read
  SavedOptimizerState(const std::map<std::string, at::Tensor>& tensors);
  /// find() reads them, each time.
  explicit SavedOptimizerState(const std::map<std::string, LazyTensor>& tensors);

  bool contains(const std::string& tensor) const { return shards_.contains(tensor); }
  std::vector<std::string> names() const;
  /// Where it was saved whole; null where it was not, or not at all. A tensor without values where it is not read yet.
  const at::Tensor* find_whole(const std::string& tensor) const;

  /// Elements [first, first + count) of a flattened tensor that has `total` of them, and this type: [count]. Nothing
  /// where it has other ones, or they are not all there.
  std::optional<at::Tensor> find(const std::string& tensor, int64_t first, int64_t count, int64_t total,
                                 at::ScalarType dtype) const;

 private:
  struct SavedShard {
    int64_t first;
    at::Tensor values;
    bool is_whole;
    std::function<at::Tensor()> read;  // empty: `values` are there
  };
  void add(const std::string& name, const at::Tensor& values, std::function<at::Tensor()> read);
  void sort();

  std::map<std::string, std::vector<SavedShard>> shards_;  // ascending
};

}  // namespace vlmtrain::engine
