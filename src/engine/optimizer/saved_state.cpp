// Members of Optimizer that save, load and migrate its state.

#include "vlmtrain/engine/optimizer/saved_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "engine/optimizer/chunks.h"
#include "engine/optimizer/state_storage.h"
#include "engine/optimizer/update_rule.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/engine/optimizer/optimizer.h"

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

std::string Optimizer::make_saved_tensor_name(const OptimizerStateTensor& tensor) const {
  return tensor.is_sharded && !shard().covers_all() ? make_shard_name(tensor.name, tensor.first) : tensor.name;
}

std::vector<OptimizerStateTensor> Optimizer::collect_state_tensors() const {
  std::vector<OptimizerStateTensor> tensors;
  const auto add = [&tensors](const std::string& name, const at::Tensor& values) {
    tensors.push_back({.name = name, .values = {values}, .total = values.numel()});
  };
  add("steps", step_counters_);
  if (loss_scale_) {
    for (const auto& [name, values] : loss_scale_->state()) add(name, values);
  }
  if (num_updates_.defined()) add("updates", num_updates_);
  auto parameter_tensors = storage_->collect_tensors();
  std::ranges::move(parameter_tensors, std::back_inserter(tensors));
  return tensors;
}

std::vector<std::pair<std::string, nn::StoredTensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, nn::StoredTensor>> tensors;
  for (const auto& tensor : collect_state_tensors()) {
    if (tensor.is_sharded || shard().rank == 0) tensors.emplace_back(make_saved_tensor_name(tensor), tensor.values);
  }
  return tensors;
}

std::vector<std::pair<std::string, nn::StoredTensor>> Optimizer::master_weights() const {
  std::vector<std::pair<std::string, nn::StoredTensor>> masters;
  for (const auto& parameter : storage_->parameters()) {
    if (!parameter.has_local_elements()) continue;
    masters.emplace_back(shard().covers_all() ? parameter.name : make_shard_name(parameter.name, parameter.range.first),
                         storage_->get_stored_master(parameter));
  }
  return masters;
}

/// Returns whether a saved state may lack the tensor. Weights that are rounded stochastically have no
/// masters, and which ones are depends on the device.
bool Optimizer::is_optional(const OptimizerStateTensor& tensor) const {
  return tensor.is_master && settings_.master_weights == MasterWeights::kStochastic;
}

/// Throws UserError (kBadData) unless `saved` has the expected tensors with their shapes and data
/// types, and no others.
void Optimizer::check_saved_tensors(const std::vector<OptimizerStateTensor>& expected_tensors,
                                    const SavedOptimizerState& saved, const std::string& source) const {
  const auto fail = [&source](const std::string& name, std::string_view problem) {
    throw data_error(
        "{}: {} {}; model, frozen components, precision, optimizer and optimizer states of the run must match the "
        "checkpoint",
        source, name, problem);
  };
  std::set<std::string> expected_names;
  for (const auto& tensor : expected_tensors) {
    expected_names.insert(tensor.name);
    if (!saved.contains(tensor.name)) {
      if (is_optional(tensor)) continue;
      fail(tensor.name, "is missing");
    }
    if (const at::Tensor* const unsharded_tensor = saved.find_unsharded_tensor(tensor.name)) {
      const bool is_flattened = tensor.is_sharded && !shard().covers_all();
      if (is_flattened ? unsharded_tensor->numel() != tensor.total : unsharded_tensor->sizes() != tensor.sizes()) {
        fail(tensor.name, "has a different shape");
      }
      if (unsharded_tensor->scalar_type() != tensor.saved_dtype()) fail(tensor.name, "has a different data type");
    }
  }
  const auto is_on_other_rank = [&](const std::string& name) {
    return !shard().covers_all() && std::ranges::any_of(storage_->parameters(), [&](const ParameterState& parameter) {
      return !parameter.has_local_elements() && name.ends_with("." + parameter.name);
    });
  };
  for (const auto& name : saved.names()) {
    if (!expected_names.contains(name) && !is_on_other_rank(name)) fail(name, "does not belong to this run's state");
  }
}

void Optimizer::load_state(const SavedOptimizerState& saved, const std::string& source) {
  const at::NoGradGuard no_gradients;
  auto expected_tensors = collect_state_tensors();
  for (const auto& parameter : storage_->parameters()) {
    if (parameter.has_local_elements() && !parameter.has_master() && saved.contains("master." + parameter.name))
      expected_tensors.push_back(storage_->make_master_state_tensor(parameter));
  }
  check_saved_tensors(expected_tensors, saved, source);
  for (const auto& tensor : expected_tensors) {
    if (is_optional(tensor) && !saved.contains(tensor.name)) {
      tensor.values.write(tensor.parameter->weight);
      continue;
    }
    const auto values = saved.read_range(tensor.name, tensor.first, tensor.numel(), tensor.total, tensor.saved_dtype());
    if (!values)
      throw data_error("{}: {} is incomplete or has a different data type; copy the checkpoint again", source,
                       tensor.name);
    tensor.values.write(values->view(tensor.sizes()));
  }
  storage_->copy_masters_to_weights();
}

/// Returns the saved values of a tensor of the state; nullopt if shape or data type differ.
std::optional<at::Tensor> Optimizer::read_matching_values(const OptimizerStateTensor& tensor,
                                                          const SavedOptimizerState& saved) const {
  const at::Tensor* const unsharded_tensor = saved.find_unsharded_tensor(tensor.name);
  if (unsharded_tensor != nullptr && shard().covers_all() && unsharded_tensor->sizes() != tensor.sizes())
    return std::nullopt;
  return saved.read_range(tensor.name, tensor.first, tensor.numel(), tensor.total, tensor.saved_dtype());
}

/// Copies the saved tensors that belong to no parameter, except for the step counters.
void Optimizer::migrate_shared_tensors(const std::vector<OptimizerStateTensor>& tensors,
                                       const SavedOptimizerState& saved) const {
  for (const auto& tensor : tensors) {
    if (tensor.is_sharded || tensor.name == "steps") continue;
    if (tensor.name != "updates" && !settings_.loss_scale->dynamic) continue;
    if (const auto values = read_matching_values(tensor, saved)) tensor.values.write(values->view(tensor.sizes()));
  }
}

/// Copies the saved moments of a parameter if all of them match. Returns whether they do.
bool Optimizer::migrate_moments(const ParameterState& parameter, const std::vector<OptimizerStateTensor>& tensors,
                                const SavedOptimizerState& saved) const {
  if (!parameter.has_local_elements()) {
    // Step counters are replicated, so all ranks must make the same decision, also those that have
    // no part of the parameter.
    const std::string name = rules_->get(parameter.group.rule).moment_names().front() + "." + parameter.name;
    const at::ScalarType compressed_dtype =
        settings_.state_dtype == OptimizerStateDtype::kBf16 ? at::kBFloat16 : at::kByte;
    const int64_t elements = parameter.parameter.numel();
    const auto first_moment =
        parameter.has_compressed_moments()
            ? saved.read_range(name, 0, 1, count_blocks(elements) * kBlockElements, compressed_dtype)
            : saved.read_range(name, 0, 1, elements, at::kFloat);
    return first_moment.has_value();
  }
  std::vector<std::pair<nn::StoredTensor, at::Tensor>> moments;  // current and saved values
  for (const auto& tensor : tensors) {
    if (tensor.parameter != &parameter || tensor.is_master) continue;
    const auto values = read_matching_values(tensor, saved);
    if (!values) return false;
    moments.emplace_back(tensor.values, values->view(tensor.sizes()));
  }
  for (const auto& [current, values] : moments) current.write(values);
  return true;
}

StateMigrationResult Optimizer::migrate_state(const nn::ParameterStore& store, const SavedOptimizerState& saved,
                                              const std::string& source) {
  const at::NoGradGuard no_gradients;
  // The saved step counters are in the order of the parameters with saved moments.
  std::map<std::string, int64_t> step_counter_indices;  // by parameter name; index into the saved step counters
  for (const auto& parameter : store.all()) {
    if (has_moments(saved, parameter.name))
      step_counter_indices.emplace(parameter.name, std::ssize(step_counter_indices));
  }
  const at::Tensor* const steps = saved.find_unsharded_tensor("steps");
  if (steps == nullptr || steps->sizes() != at::IntArrayRef{std::ssize(step_counter_indices)}) {
    throw data_error("{}: the step counters do not match the {} moments; copy the checkpoint again", source,
                     step_counter_indices.size());
  }
  const auto tensors = collect_state_tensors();
  migrate_shared_tensors(tensors, saved);
  // Masters are copied whenever they match. Moments and the step counter of a parameter are copied
  // only together.
  StateMigrationResult result;
  for (size_t i = 0; i < storage_->parameters().size(); ++i) {
    const ParameterState& parameter = storage_->parameters()[i];
    if (parameter.has_local_elements()) {
      const OptimizerStateTensor tensor = storage_->make_master_state_tensor(parameter);
      if (const auto master = read_matching_values(tensor, saved)) tensor.values.write(master->view(tensor.sizes()));
    }
    const auto step_counter_index = step_counter_indices.find(parameter.name);
    if (step_counter_index == step_counter_indices.end() || !migrate_moments(parameter, tensors, saved)) {
      ++result.num_reset_parameters;
      continue;
    }
    step_counters_.select(0, static_cast<int64_t>(i)).copy_(steps->select(0, step_counter_index->second));
    ++result.num_migrated_parameters;
  }
  storage_->copy_masters_to_weights();
  return result;
}

}  // namespace vlmtrain::engine
