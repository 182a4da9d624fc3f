#include <map>
#include <tuple>
#include <utility>

#include "engine/optimizer/adamw_entry.h"
#include "engine/optimizer/compressed_states.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::engine {

namespace {

/// The properties that tensors of one launch share: component, whether they have weight decay, and
/// whether their moments are compressed.
using GroupKey = std::tuple<nn::Component, bool, bool>;

/// Returns `tensor_args` with the compressed moments of a tensor of `states`.
kernels::AdamWParameter add_moments(kernels::AdamWParameter tensor_args, const CompressedStates& states,
                                    size_t tensor) {
  for (const auto& [name, moment_tensor] : states.state(tensor)) {
    const size_t moment_index = name.starts_with("first") ? 0 : 1;
    (name.ends_with("absmax") ? tensor_args.absmax : tensor_args.moments)[moment_index] = moment_tensor;
  }
  return tensor_args;
}

}  // namespace

bool AdamW::has_custom_kernel() const {
  // The kernel does not support fp64 weights, which tests use.
  return !entries_.empty() && kernels::is_available(kernels::Kernel::kAdamW, entries_.front().weight);
}

void AdamW::add_custom_kernel_groups(OptimizerUpdate& update) const {
  std::map<GroupKey, OptimizerUpdate::Group> groups;
  const auto make_tensor = [&](size_t i) {
    const Entry& entry = entries_[i];
    return kernels::AdamWParameter{.master = entry.master,
                                   .gradient = get_gradient(i),
                                   .weight = entry.has_master() ? entry.weight : at::Tensor(),
                                   .steps = entry.steps,
                                   .tensor_id = static_cast<uint32_t>(i)};
  };
  const auto add = [&](size_t i, kernels::AdamWParameter tensor_args) {
    const Entry& entry = entries_[i];
    OptimizerUpdate::Group& group = groups[{entry.component, entry.has_weight_decay, entry.is_compressed()}];
    group.component = entry.component;
    group.has_weight_decay = entry.has_weight_decay;
    group.tensors.push_back(std::move(tensor_args));
  };
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!buckets_.has_gradient(i) || !entry.is_local() || entry.is_compressed()) continue;
    kernels::AdamWParameter tensor_args = make_tensor(i);
    tensor_args.moments = {entry.first_moment, entry.second_moment};
    add(i, std::move(tensor_args));
  }
  for (const auto& compressed : compressed_groups_) {
    for (size_t tensor = 0; tensor < compressed.entries.size(); ++tensor) {
      const size_t i = compressed.entries[tensor];
      if (!buckets_.has_gradient(i) || !entries_[i].is_local()) continue;
      add(i, add_moments(make_tensor(i), *compressed.states, tensor));
    }
  }
  for (auto& [key, group] : groups) update.groups.push_back(std::move(group));
}

void AdamW::apply_custom_kernel(const OptimizerUpdate& update, const OptimizerUpdate::Group& group,
                                const LearningRates& rates, uint64_t rounding_seed) const {
  kernels::AdamWStep step{.learning_rate = rates.get_rate(group.component),
                          .beta1 = settings_.beta1,
                          .beta2 = settings_.beta2,
                          .epsilon = settings_.epsilon,
                          .weight_decay = group.has_weight_decay ? settings_.weight_decay : 0.0,
                          .divisor = update.divisor,
                          .skipped = update.skipped,
                          .seed = rounding_seed};
  if (settings_.states == OptimizerStates::k8Bit) {
    step.codes = chunk_context_->tables.codes;
    step.bounds = chunk_context_->tables.padded_bounds;
  }
  kernels::adamw(group.tensors, step);
}

}  // namespace vlmtrain::engine
