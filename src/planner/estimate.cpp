#include "planner/estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

double reserved(const Outcome& outcome) {
  return static_cast<double>(outcome.peaks().reserved_bytes);
}

int64_t to_bytes(double bytes) {
  constexpr double kMost = 1e18;
  return std::llround(std::clamp(bytes, 0.0, kMost));
}

double without_optimizer(const StepCosts& costs) {
  return costs.total.seconds - costs.optimizer.seconds;
}

}  // namespace

Estimate::Estimate(const Probes& probes) {
  VLMTRAIN_CHECK(probes.one.costs && probes.one.detail, "the first probe comes with costs and detail");
  const StepCosts& costs = *probes.one.costs;
  vision_blocks_ = probes.one.detail->vision_blocks;
  language_blocks_ = probes.one.detail->language_blocks;
  bytes_of_one_ = reserved(probes.one);
  seconds_of_one_ = without_optimizer(costs);
  optimizer_seconds_ = costs.optimizer.seconds;
  const auto block_of = [this](const std::optional<Outcome>& all_recomputed, int64_t blocks, double forward_seconds) {
    if (!all_recomputed || blocks == 0) return Block{};
    const double saved = std::max(0.0, bytes_of_one_ - reserved(*all_recomputed));
    return Block{saved / static_cast<double>(blocks), forward_seconds / static_cast<double>(blocks)};
  };
  vision_ = block_of(probes.vision, vision_blocks_, costs.vision_blocks_forward.seconds);
  language_ = block_of(probes.language, language_blocks_, costs.language_blocks_forward.seconds);
  bytes_per_further_sample_ = probes.two ? reserved(*probes.two) - bytes_of_one_ : 0;
  seconds_per_further_sample_ = probes.two ? without_optimizer(*probes.two->costs) - seconds_of_one_ : 0;
}

double Estimate::uncorrected_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const {
  const double saved = static_cast<double>(recompute.vision) * vision_.saved_bytes +
                       static_cast<double>(recompute.language) * language_.saved_bytes;
  // What the first sample's blocks save may be more than a further sample takes at all, but none takes less than
  // nothing.
  const double further = std::max(0.0, bytes_per_further_sample_ - saved);
  return bytes_of_one_ - saved + static_cast<double>(micro_batch_size - 1) * further;
}

int64_t Estimate::reserved_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const {
  const double uncorrected = uncorrected_bytes(micro_batch_size, recompute);
  if (correction_.empty()) return to_bytes(uncorrected);
  // Of the nearest size that was rehearsed, in proportion to the samples.
  auto nearest = correction_.begin();
  double least = std::numeric_limits<double>::infinity();
  for (auto entry = correction_.begin(); entry != correction_.end(); ++entry) {
    const double distance =
        std::abs(std::log(static_cast<double>(entry->first) / static_cast<double>(micro_batch_size)));
    if (distance < least) {
      least = distance;
      nearest = entry;
    }
  }
  const double scale = static_cast<double>(micro_batch_size) / static_cast<double>(nearest->first);
  return to_bytes(uncorrected + nearest->second * scale);
}

double Estimate::micro_batch_seconds(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const {
  const auto samples = static_cast<double>(micro_batch_size);
  return seconds_of_one_ + (samples - 1) * seconds_per_further_sample_ +
         samples * (static_cast<double>(recompute.vision) * vision_.seconds +
                    static_cast<double>(recompute.language) * language_.seconds);
}

double Estimate::step_seconds(double micro_batches, double samples, const models::RecomputeBlocks& recompute) const {
  const double sample = micro_batch_seconds(1, recompute) - micro_batch_seconds(0, recompute);
  return micro_batches * micro_batch_seconds(0, recompute) + samples * sample + optimizer_seconds_;
}

std::vector<models::RecomputeBlocks> Estimate::recompute_order() const {
  std::vector<models::RecomputeBlocks> order{{}};
  const auto add = [&order](int64_t models::RecomputeBlocks::*tower, int64_t blocks, const Block& block) {
    if (block.saved_bytes <= 0) return;
    for (int64_t i = 0; i < blocks; ++i) {
      order.push_back(order.back());
      order.back().*tower += 1;
    }
  };
  const bool vision_first = vision_.seconds * language_.saved_bytes <= language_.seconds * vision_.saved_bytes;
  if (vision_first) add(&models::RecomputeBlocks::vision, vision_blocks_, vision_);
  add(&models::RecomputeBlocks::language, language_blocks_, language_);
  if (!vision_first) add(&models::RecomputeBlocks::vision, vision_blocks_, vision_);
  return order;
}

void Estimate::learn(int64_t micro_batch_size, const models::RecomputeBlocks& recompute, int64_t reserved_bytes) {
  correction_[micro_batch_size] = static_cast<double>(reserved_bytes) - uncorrected_bytes(micro_batch_size, recompute);
}

}  // namespace vlmtrain::planner
