#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "engine/optimizer/adamw_entry.h"
#include "engine/optimizer/compressed_states.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

void AdamW::copy_masters_to_weights() {
  std::vector<at::Tensor> weights, master_weights;
  for (const auto& entry : entries_) {
    if (!entry.has_master()) continue;
    weights.push_back(entry.weight);
    master_weights.push_back(entry.master);
  }
  if (!weights.empty()) at::_foreach_copy_(weights, master_weights);
}

std::string AdamW::make_saved_tensor_name(const OptimizerStateTensor& tensor) const {
  return tensor.is_sharded && !shard().covers_all() ? make_shard_name(tensor.name, tensor.first) : tensor.name;
}

/// Returns the master of the entry as a tensor of the state.
AdamW::OptimizerStateTensor AdamW::make_master_state_tensor(const Entry& entry) const {
  return {.name = "master." + entry.name,
          .values = entry.master,
          .first = entry.range.first,
          .total = entry.parameter.numel(),
          .is_sharded = true};
}

std::vector<AdamW::OptimizerStateTensor> AdamW::collect_state_tensors() const {
  std::vector<OptimizerStateTensor> tensors;
  const auto add = [&tensors](const std::string& name, const at::Tensor& values) {
    tensors.push_back({.name = name, .values = values, .total = values.numel()});
  };
  add("steps", step_counters_);
  if (loss_scale_) {
    for (const auto& [name, values] : loss_scale_->state()) add(name, values);
  }
  if (num_updates_.defined()) add("updates", num_updates_);
  for (const auto& entry : entries_) {
    if (!entry.has_local_elements()) continue;
    if (!entry.is_compressed()) {
      for (const auto& [prefix, values] :
           {std::pair{"first_moment.", entry.first_moment}, {"second_moment.", entry.second_moment}}) {
        OptimizerStateTensor moment_tensor = make_master_state_tensor(entry);
        moment_tensor.name = prefix + entry.name;
        moment_tensor.values = values;
        tensors.push_back(std::move(moment_tensor));
      }
    }
    if (entry.has_master()) tensors.push_back(make_master_state_tensor(entry));
  }
  for (const auto& compressed : compressed_groups_) {
    for (size_t i = 0; i < compressed.entries.size(); ++i) {
      const Entry& entry = entries_[compressed.entries[i]];
      if (!entry.has_local_elements()) continue;
      for (auto& [prefix, values] : compressed.compressed_states->state(i)) {
        // A moment has one value per element, an absmax one per block.
        const int64_t values_per_block = values.dim() == 2 ? values.size(1) : 1;
        tensors.push_back({.name = fmt::format("{}.{}", prefix, entry.name),
                           .values = values,
                           .first = entry.range.first / kShardAlignment * values_per_block,
                           .total = CompressedStates::count_blocks(entry.parameter.numel()) * values_per_block,
                           .is_sharded = true});
      }
    }
  }
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& tensor : collect_state_tensors()) {
    if (tensor.is_sharded || shard().rank == 0) tensors.emplace_back(make_saved_tensor_name(tensor), tensor.values);
  }
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::master_weights() const {
  std::vector<std::pair<std::string, at::Tensor>> master_weights;
  for (const auto& entry : entries_) {
    if (!entry.has_local_elements()) continue;
    master_weights.emplace_back(shard().covers_all() ? entry.name : make_shard_name(entry.name, entry.range.first),
                                entry.master);
  }
  return master_weights;
}

void AdamW::load_state(const SavedOptimizerState& saved, const std::string& source) {
  const at::NoGradGuard no_gradients;
  auto expected_tensors = collect_state_tensors();
  for (const auto& entry : entries_) {
    if (entry.has_local_elements() && !entry.has_master() && saved.contains("master." + entry.name)) {
      expected_tensors.push_back(make_master_state_tensor(entry));
    }
  }
  const auto fail = [&source](const std::string& name, std::string_view problem) {
    throw data_error(
        "{}: {} {}; model, frozen components, precision and optimizer states of the run must match the checkpoint",
        source, name, problem);
  };
  std::set<std::string> expected_names;
  for (const auto& tensor : expected_tensors) {
    expected_names.insert(tensor.name);
    if (!saved.contains(tensor.name)) fail(tensor.name, "is missing");
    if (const at::Tensor* const unsharded_tensor = saved.find_unsharded_tensor(tensor.name)) {
      const bool is_flattened = tensor.is_sharded && !shard().covers_all();
      if (is_flattened ? unsharded_tensor->numel() != tensor.total
                       : unsharded_tensor->sizes() != tensor.values.sizes()) {
        fail(tensor.name, "has a different shape");
      }
      if (unsharded_tensor->scalar_type() != tensor.values.scalar_type())
        fail(tensor.name, "has a different data type");
    }
  }
  const auto is_on_other_rank = [&](const std::string& name) {
    return !shard().covers_all() && std::ranges::any_of(entries_, [&](const Entry& entry) {
      return !entry.has_local_elements() && name.ends_with("." + entry.name);
    });
  };
  for (const auto& name : saved.names()) {
    if (!expected_names.contains(name) && !is_on_other_rank(name)) fail(name, "does not belong to this run's state");
  }
  for (const auto& tensor : expected_tensors) {
    const auto values =
        saved.read_range(tensor.name, tensor.first, tensor.values.numel(), tensor.total, tensor.values.scalar_type());
    if (!values) fail(tensor.name, "is incomplete or has a different data type");
    tensor.values.copy_(values->view(tensor.values.sizes()));
  }
  copy_masters_to_weights();
}

StateMigrationResult AdamW::migrate_state(const nn::ParameterStore& store, const SavedOptimizerState& saved,
                                          const std::string& source) {
  const at::NoGradGuard no_gradients;
  // The saved step counters are in the order of the parameters with saved moments.
  std::map<std::string, int64_t> step_counter_indices;  // by parameter name; index into the saved step counters
  for (const auto& parameter : store.all()) {
    if (saved.contains("first_moment." + parameter.name))
      step_counter_indices.emplace(parameter.name, std::ssize(step_counter_indices));
  }
  const at::Tensor* const steps = saved.find_unsharded_tensor("steps");
  if (steps == nullptr || steps->sizes() != at::IntArrayRef{std::ssize(step_counter_indices)}) {
    throw data_error("{}: the step counters do not match the {} moments; copy the checkpoint again", source,
                     step_counter_indices.size());
  }
  const auto find_saved_values = [&](const OptimizerStateTensor& tensor) -> std::optional<at::Tensor> {
    const at::Tensor* const unsharded_tensor = saved.find_unsharded_tensor(tensor.name);
    if (unsharded_tensor != nullptr && shard().covers_all() && unsharded_tensor->sizes() != tensor.values.sizes())
      return std::nullopt;
    return saved.read_range(tensor.name, tensor.first, tensor.values.numel(), tensor.total,
                            tensor.values.scalar_type());
  };
  // Returns a value if other ranks find matching moments of a parameter that this rank has no part
  // of. Step counters are replicated, so all ranks must make the same decision.
  const auto find_moment_on_other_rank = [&](const Entry& entry) {
    const at::ScalarType compressed_dtype =
        settings_.state_dtype == OptimizerStateDtype::kBf16 ? at::kBFloat16 : at::kByte;
    const int64_t elements = entry.parameter.numel();
    return entry.is_compressed()
               ? saved.read_range("first_moment." + entry.name, 0, 1,
                                  CompressedStates::count_blocks(elements) * kBlockElements, compressed_dtype)
               : saved.read_range("first_moment." + entry.name, 0, 1, elements, at::kFloat);
  };
  const auto copy_saved_values = [](const at::Tensor& current, const at::Tensor& saved_values) {
    current.copy_(saved_values.view(current.sizes()));
  };
  std::map<std::string, std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>>> moments;  // by parameter name
  for (const auto& tensor : collect_state_tensors()) {
    auto saved_values = find_saved_values(tensor);
    const size_t dot_position = tensor.name.find('.');
    if (tensor.is_sharded) {
      if (!tensor.name.starts_with("master.")) {
        moments[tensor.name.substr(dot_position + 1)].emplace_back(tensor.values, std::move(saved_values));
      }
    } else if (saved_values && tensor.name != "steps" && (tensor.name == "updates" || settings_.loss_scale->dynamic)) {
      copy_saved_values(tensor.values, *saved_values);
    }
  }
  // Masters are copied whenever they match. Moments and the step counter of a parameter are copied
  // only together.
  StateMigrationResult result;
  for (const auto& entry : entries_) {
    const auto step_counter_index = step_counter_indices.find(entry.name);
    bool is_migrated = step_counter_index != step_counter_indices.end();
    if (entry.has_local_elements()) {
      if (const auto master = find_saved_values(make_master_state_tensor(entry)))
        copy_saved_values(entry.master, *master);
      const auto& current = moments.at(entry.name);
      is_migrated =
          is_migrated && std::ranges::all_of(current, [](const auto& pair) { return pair.second.has_value(); });
      for (size_t i = 0; is_migrated && i < current.size(); ++i)
        copy_saved_values(current[i].first, *current[i].second);
    } else {
      is_migrated = is_migrated && find_moment_on_other_rank(entry);
    }
    if (!is_migrated) {
      ++result.num_reset_parameters;
      continue;
    }
    entry.steps.copy_(steps->select(0, step_counter_index->second));
    ++result.num_migrated_parameters;
  }
  copy_masters_to_weights();
  return result;
}

}  // namespace vlmtrain::engine
