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
using UpdateGroupKey = std::tuple<nn::Component, bool, bool>;

/// Returns `fused_parameter` with the compressed moments of a tensor of `compressed_states`.
kernels::AdamWParameter add_compressed_moments(kernels::AdamWParameter fused_parameter,
                                               const CompressedStates& compressed_states, size_t tensor) {
  for (const auto& [name, moment_tensor] : compressed_states.state(tensor)) {
    const size_t moment_index = name.starts_with("first") ? 0 : 1;
    (name.ends_with("absmax") ? fused_parameter.absmax : fused_parameter.moments)[moment_index] = moment_tensor;
  }
  return fused_parameter;
}

}  // namespace

bool AdamW::has_custom_kernel() const {
  // The kernel does not support fp64 weights, which tests use.
  return !entries_.empty() && kernels::is_available(kernels::Kernel::kAdamW, entries_.front().weight);
}

void AdamW::add_custom_kernel_groups(OptimizerUpdate& update) const {
  std::map<UpdateGroupKey, OptimizerUpdate::Group> groups;
  const auto make_adamw_parameter = [&](size_t i) {
    const Entry& entry = entries_[i];
    return kernels::AdamWParameter{.master = entry.master,
                                   .gradient = get_gradient(i),
                                   .weight = entry.has_master() ? entry.weight : at::Tensor(),
                                   .steps = entry.steps,
                                   .tensor_id = static_cast<uint32_t>(i)};
  };
  const auto add = [&](size_t i, kernels::AdamWParameter fused_parameter) {
    const Entry& entry = entries_[i];
    OptimizerUpdate::Group& group = groups[{entry.component, entry.has_weight_decay, entry.is_compressed()}];
    group.component = entry.component;
    group.has_weight_decay = entry.has_weight_decay;
    group.tensors.push_back(std::move(fused_parameter));
  };
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!buckets_.has_gradient(i) || !entry.has_local_elements() || entry.is_compressed()) continue;
    kernels::AdamWParameter fused_parameter = make_adamw_parameter(i);
    fused_parameter.moments = {entry.first_moment, entry.second_moment};
    add(i, std::move(fused_parameter));
  }
  for (const auto& compressed : compressed_groups_) {
    for (size_t tensor = 0; tensor < compressed.entries.size(); ++tensor) {
      const size_t i = compressed.entries[tensor];
      if (!buckets_.has_gradient(i) || !entries_[i].has_local_elements()) continue;
      add(i, add_compressed_moments(make_adamw_parameter(i), *compressed.compressed_states, tensor));
    }
  }
  for (auto& [key, group] : groups) update.groups.push_back(std::move(group));
}

void AdamW::apply_custom_kernel(const OptimizerUpdate& update, const OptimizerUpdate::Group& group,
                                const LearningRates& rates, uint64_t rounding_seed) const {
  kernels::AdamWStep step{.learning_rate = rates.get_learning_rate(group.component),
                          .beta1 = settings_.beta1,
                          .beta2 = settings_.beta2,
                          .epsilon = settings_.epsilon,
                          .weight_decay = group.has_weight_decay ? settings_.weight_decay : 0.0,
                          .divisor = update.gradient_divisor,
                          .skip_flag = update.skipped,
                          .seed = rounding_seed};
  if (settings_.state_dtype == OptimizerStateDtype::k8Bit) {
    step.code_values = chunk_context_->tables.codebooks;
    step.rounding_bounds = chunk_context_->tables.padded_bounds;
  }
  kernels::adamw(group.tensors, step);
}

}  // namespace vlmtrain::engine
