#include "vlmtrain/engine/shared_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::engine {

SharedWeights::SharedWeights(nn::ParameterStore& store, const GradientSums& sums)
    : store_(store), behind_(store.all().size(), 0) {
  const memory::InComponent weights(memory::Component::kWeights);
  const at::NoGradGuard no_gradients;
  std::vector<std::vector<size_t>> members(sums.bucket_elements().size());  // by bucket of the sums: of the store
  std::vector<size_t> of_sums(store.all().size());                          // their number in the sums
  size_t trained = 0;
  for (size_t i = 0; i < store.all().size(); ++i) {
    const nn::Parameter& parameter = store.all()[i];
    if (!parameter.tensor.requires_grad()) continue;
    if (sums.is_of_sharded_block(trained)) {
      ++trained;
      continue;
    }
    VLMTRAIN_CHECK(parameter.tensor.scalar_type() == store.options().dtype().toScalarType(),
                   "{} is of another type than the other weights", parameter.name);
    of_sums[i] = trained;
    members[sums.bucket(trained++)].push_back(i);
  }
  // What a forward pass reads of a bucket first decides on its turn.
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto first_use = [&](size_t bucket) {
    const auto uses = [&](size_t i) { return store.all()[i].is_in_block ? i + 1 : 0; };
    size_t first = std::numeric_limits<size_t>::max();
    for (const size_t i : members[bucket]) first = std::min(first, uses(i));
    return first;
  };
  std::ranges::stable_sort(order, {}, first_use);
  const auto elements = sums.bucket_elements();
  for (const size_t bucket : order) {
    buckets_.push_back(at::zeros({elements[bucket]}, store.options()));
    for (const size_t i : members[bucket]) {
      at::Tensor tensor = store.all()[i].tensor;
      const at::Tensor place = buckets_.back().narrow(0, sums.place(of_sums[i]), tensor.numel()).view(tensor.sizes());
      place.copy_(tensor);
      tensor.set_data(place);
      behind_[i] = buckets_.size();
    }
  }
  arrived_ = buckets_.size();
  store_.set_before_use([this](size_t first, size_t end) { wait_for(first, end); });
}

SharedWeights::~SharedWeights() {
  store_.set_before_use({});
}

void SharedWeights::gather(const Consensus& consensus) {
  finish();
  consensus_ = &consensus;
  tickets_.clear();
  for (const auto& bucket : buckets_) tickets_.push_back(consensus.gather_parts(bucket));
  arrived_ = 0;
}

void SharedWeights::finish() {
  for (; arrived_ < buckets_.size(); ++arrived_) consensus_->finish_gather(tickets_[arrived_]);
}

void SharedWeights::wait_for(size_t first_parameter, size_t end_parameter) {
  if (arrived_ == buckets_.size()) return;
  const auto wanted = std::max_element(behind_.begin() + static_cast<std::ptrdiff_t>(first_parameter),
                                       behind_.begin() + static_cast<std::ptrdiff_t>(end_parameter));
  const size_t count = wanted == behind_.begin() + static_cast<std::ptrdiff_t>(end_parameter) ? 0 : *wanted;
  for (; arrived_ < count; ++arrived_) consensus_->finish_gather(tickets_[arrived_]);
}

}  // namespace vlmtrain::engine
