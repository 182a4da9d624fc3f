#include "vlmtrain/engine/optimizer/saved_state.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain::engine {

std::string make_shard_name(std::string_view tensor, int64_t first) {
  return fmt::format("{}@{}", tensor, first);
}

std::optional<std::pair<std::string, int64_t>> parse_shard_name(std::string_view name) {
  const size_t separator_position = name.rfind('@');
  if (separator_position == std::string_view::npos) return std::nullopt;
  const auto first = parse_int_after_prefix("@", name.substr(separator_position));
  if (!first || *first < 0) return std::nullopt;
  return std::pair{std::string(name.substr(0, separator_position)), *first};
}

SavedOptimizerState::SavedOptimizerState(const std::map<std::string, at::Tensor>& tensors) {
  for (const auto& [name, values] : tensors) add(name, values, {});
  sort_shards();
}

SavedOptimizerState::SavedOptimizerState(const std::map<std::string, LazyStateTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    add(name, at::empty(tensor.shape, at::TensorOptions(tensor.dtype).device(at::kMeta)), tensor.read);
  }
  sort_shards();
}

void SavedOptimizerState::add(const std::string& name, const at::Tensor& values, std::function<at::Tensor()> read) {
  const auto shard = parse_shard_name(name);
  shards_[shard ? shard->first : name].push_back(
      {.first = shard ? shard->second : 0, .values = values, .is_unsharded = !shard, .read = std::move(read)});
}

void SavedOptimizerState::sort_shards() {
  for (auto& [name, shards] : shards_) std::ranges::sort(shards, {}, &SavedShard::first);
}

std::vector<std::string> SavedOptimizerState::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shards] : shards_) names.push_back(name);
  return names;
}

const at::Tensor* SavedOptimizerState::find_unsharded_tensor(const std::string& tensor) const {
  const auto it = shards_.find(tensor);
  return it != shards_.end() && it->second.front().is_unsharded ? &it->second.front().values : nullptr;
}

std::optional<at::Tensor> SavedOptimizerState::read_range(const std::string& tensor, int64_t first, int64_t count,
                                                          int64_t total, at::ScalarType dtype) const {
  const auto it = shards_.find(tensor);
  if (it == shards_.end()) return std::nullopt;
  std::vector<at::Tensor> shard_slices;
  int64_t end = 0;
  for (const SavedShard& shard : it->second) {
    if (shard.first != end || shard.values.scalar_type() != dtype) return std::nullopt;
    const int64_t shard_end = shard.first + shard.values.numel();
    const int64_t from = std::max(first, shard.first), to = std::min(first + count, shard_end);
    if (to > from)
      shard_slices.push_back(
          (shard.read ? shard.read() : shard.values).reshape({-1}).narrow(0, from - shard.first, to - from));
    end = shard_end;
  }
  if (end != total || shard_slices.empty()) return std::nullopt;
  return shard_slices.size() == 1 ? shard_slices.front() : at::cat(shard_slices);
}

}  // namespace vlmtrain::engine
