#include <map>
#include <tuple>
#include <utility>

#include "engine/compressed_states.h"
#include "engine/optimizer_entry.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::engine {

namespace {

/// Of tensors that a launch can move together: their learning rate, weight decay, and how moments are held.
using GroupKey = std::tuple<nn::Component, bool, bool>;

kernels::MovedTensor with_moments(kernels::MovedTensor moved, const CompressedStates& states, size_t tensor) {
  for (const auto& [name, held] : states.state(tensor)) {
    const size_t moment = name.starts_with("first") ? 0 : 1;
    (name.ends_with("absmax") ? moved.absmax : moved.moments)[moment] = held;
  }
  return moved;
}

}  // namespace

bool AdamW::has_own_kernel() const {
  // Weights in fp64, as tests have them, are beyond it.
  return !entries_.empty() && kernels::has(kernels::Kernel::kAdamW, entries_.front().weight);
}

void AdamW::add_moved(PreparedUpdate& update) const {
  std::map<GroupKey, PreparedUpdate::Group> groups;
  const auto plain = [&](size_t i) {
    const Entry& entry = entries_[i];
    return kernels::MovedTensor{.master = entry.master,
                                .gradient = gradient_of(i),
                                .weight = entry.has_master() ? entry.weight : at::Tensor(),
                                .steps = entry.steps,
                                .number = static_cast<uint32_t>(i)};
  };
  const auto add = [&](size_t i, kernels::MovedTensor moved) {
    const Entry& entry = entries_[i];
    PreparedUpdate::Group& group = groups[{entry.component, entry.decays, entry.is_compressed()}];
    group.component = entry.component;
    group.decays = entry.decays;
    group.moved.push_back(std::move(moved));
  };
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!sums_.received(i) || !entry.is_here() || entry.is_compressed()) continue;
    kernels::MovedTensor moved = plain(i);
    moved.moments = {entry.first_moment, entry.second_moment};
    add(i, std::move(moved));
  }
  for (const auto& compressed : compressed_) {
    for (size_t tensor = 0; tensor < compressed.entries.size(); ++tensor) {
      const size_t i = compressed.entries[tensor];
      if (!sums_.received(i) || !entries_[i].is_here()) continue;
      add(i, with_moments(plain(i), *compressed.states, tensor));
    }
  }
  for (auto& [key, group] : groups) update.groups.push_back(std::move(group));
}

void AdamW::move(const PreparedUpdate& update, const PreparedUpdate::Group& group, const LearningRates& rates,
                 uint64_t rounding_seed) const {
  kernels::AdamWStep step{.learning_rate = rates.of(group.component),
                          .beta1 = settings_.beta1,
                          .beta2 = settings_.beta2,
                          .epsilon = settings_.epsilon,
                          .weight_decay = group.decays ? settings_.weight_decay : 0.0,
                          .divisor = update.divisor,
                          .skipped = update.skipped,
                          .seed = rounding_seed};
  if (settings_.states == OptimizerStates::k8Bit) {
    step.codes = room_->shared.codes;
    step.bounds = room_->shared.padded_bounds;
  }
  kernels::adamw(group.moved, step);
}

}  // namespace vlmtrain::engine
