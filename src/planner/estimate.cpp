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
  if (probes.attention_kept && language_blocks_ > 0) {
    const double kept = std::max(0.0, reserved(*probes.attention_kept) - reserved(*probes.language));
    const auto blocks = static_cast<double>(language_blocks_);
    attention_ = {kept / blocks, costs.language_attention_forward.seconds / blocks};
  }
  bytes_per_further_sample_ = probes.two ? reserved(*probes.two) - bytes_of_one_ : 0;
  seconds_per_further_sample_ = probes.two ? without_optimizer(*probes.two->costs) - seconds_of_one_ : 0;
}

double Estimate::uncorrected_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const {
  const double saved = static_cast<double>(recompute.vision) * vision_.saved_bytes +
                       static_cast<double>(recompute.language) * language_.saved_bytes -
                       static_cast<double>(recompute.language_attention_kept) * attention_.saved_bytes;
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
                    static_cast<double>(recompute.language) * language_.seconds -
                    static_cast<double>(recompute.language_attention_kept) * attention_.seconds);
}

double Estimate::step_seconds(double micro_batches, double samples, const models::RecomputeBlocks& recompute) const {
  const double sample = micro_batch_seconds(1, recompute) - micro_batch_seconds(0, recompute);
  return micro_batches * micro_batch_seconds(0, recompute) + samples * sample + optimizer_seconds_;
}

std::vector<models::RecomputeBlocks> Estimate::recompute_order() const {
  /// So many times one block more.
  struct Stage {
    int64_t blocks;
    Block block;
    void (*add)(models::RecomputeBlocks&);
  };
  const auto is_before = [](const Stage& one, const Stage& other) {
    return one.block.seconds * other.block.saved_bytes < other.block.seconds * one.block.saved_bytes;
  };
  const Stage whole{language_blocks_, language_, [](models::RecomputeBlocks& blocks) { ++blocks.language; }};
  const Stage but_for_attention{
      language_blocks_,
      {language_.saved_bytes - attention_.saved_bytes, language_.seconds - attention_.seconds},
      [](models::RecomputeBlocks& blocks) {
        ++blocks.language;
        ++blocks.language_attention_kept;
      }};
  const Stage attention{language_blocks_, attention_,
                        [](models::RecomputeBlocks& blocks) { --blocks.language_attention_kept; }};
  std::vector<Stage> stages{{vision_blocks_, vision_, [](models::RecomputeBlocks& blocks) { ++blocks.vision; }}};
  if (attention_.seconds > 0 && is_before(but_for_attention, attention)) {
    stages.push_back(but_for_attention);
    stages.push_back(attention);
  } else {
    stages.push_back(whole);
  }
  std::ranges::stable_sort(stages, is_before);
  std::vector<models::RecomputeBlocks> order{{}};
  for (const Stage& stage : stages) {
    if (stage.block.saved_bytes <= 0) continue;
    for (int64_t i = 0; i < stage.blocks; ++i) {
      order.push_back(order.back());
      stage.add(order.back());
    }
  }
  return order;
}

bool may_keep_attention(const StepCosts& costs) {
  // A block's input and the output of its attention are a tenth of all that it keeps, or somewhat less.
  constexpr double kLeastShare = 0.08;
  return costs.language_attention_forward.seconds > kLeastShare * costs.language_blocks_forward.seconds;
}

void Estimate::learn(int64_t micro_batch_size, const models::RecomputeBlocks& recompute, int64_t reserved_bytes) {
  correction_[micro_batch_size] = static_cast<double>(reserved_bytes) - uncorrected_bytes(micro_batch_size, recompute);
}

}  // namespace vlmtrain::planner
