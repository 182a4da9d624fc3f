#include "planner/search/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

double get_reserved_bytes(const DryRunResult& result) {
  return static_cast<double>(result.peaks().reserved_bytes);
}

int64_t round_bytes(double bytes) {
  // Keeps extrapolated bytes within int64_t.
  constexpr double kMaxBytes = 1e18;
  return std::llround(std::clamp(bytes, 0.0, kMaxBytes));
}

/// Returns the duration of the forward and backward passes.
double get_pass_seconds(const StepCosts& costs) {
  return costs.total.seconds - costs.optimizer.seconds;
}

}  // namespace

CostModel::CostModel(const ProbeResults& probes) {
  VLMTRAIN_CHECK(probes.one_sample.costs && probes.one_sample.detail, "the first probe must have costs and detail");
  const StepCosts& costs = *probes.one_sample.costs;
  vision_blocks_ = probes.one_sample.detail->vision_blocks;
  language_blocks_ = probes.one_sample.detail->language_blocks;
  one_sample_bytes_ = get_reserved_bytes(probes.one_sample);
  one_sample_seconds_ = get_pass_seconds(costs);
  optimizer_seconds_ = costs.optimizer.seconds;
  const auto make_block_cost = [this](const std::optional<DryRunResult>& all_recomputed, int64_t blocks,
                                      double forward_seconds) {
    if (!all_recomputed || blocks == 0) return BlockCost{};
    const double saved = std::max(0.0, one_sample_bytes_ - get_reserved_bytes(*all_recomputed));
    return BlockCost{saved / static_cast<double>(blocks), forward_seconds / static_cast<double>(blocks)};
  };
  vision_block_cost_ = make_block_cost(probes.vision, vision_blocks_, costs.vision_blocks_forward.seconds);
  language_block_cost_ = make_block_cost(probes.language, language_blocks_, costs.language_blocks_forward.seconds);
  if (probes.language_without_attention && language_blocks_ > 0) {
    const double attention_bytes =
        std::max(0.0, get_reserved_bytes(*probes.language_without_attention) - get_reserved_bytes(*probes.language));
    const auto blocks = static_cast<double>(language_blocks_);
    attention_cost_ = {attention_bytes / blocks, costs.language_attention_forward.seconds / blocks};
  }
  bytes_per_extra_sample_ = probes.two_samples ? get_reserved_bytes(*probes.two_samples) - one_sample_bytes_ : 0;
  seconds_per_extra_sample_ =
      probes.two_samples ? get_pass_seconds(*probes.two_samples->costs) - one_sample_seconds_ : 0;
}

double CostModel::predict_linear_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const {
  const double saved = static_cast<double>(recompute.vision) * vision_block_cost_.saved_bytes +
                       static_cast<double>(recompute.language) * language_block_cost_.saved_bytes -
                       static_cast<double>(recompute.language_selective) * attention_cost_.saved_bytes;
  // The savings are measured with one sample. They may exceed the memory of a further sample, whose
  // memory cannot be negative.
  const double extra_sample_bytes = std::max(0.0, bytes_per_extra_sample_ - saved);
  return one_sample_bytes_ - saved + static_cast<double>(micro_batch_size - 1) * extra_sample_bytes;
}

int64_t CostModel::predict_reserved_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const {
  const double linear = predict_linear_bytes(micro_batch_size, recompute);
  if (byte_corrections_.empty()) return round_bytes(linear);
  // Uses the correction of the nearest dry-run micro-batch size, by ratio, scaled with the number
  // of samples.
  auto nearest_correction = byte_corrections_.begin();
  double min_distance = std::numeric_limits<double>::infinity();
  for (auto entry = byte_corrections_.begin(); entry != byte_corrections_.end(); ++entry) {
    const double distance =
        std::abs(std::log(static_cast<double>(entry->first) / static_cast<double>(micro_batch_size)));
    if (distance < min_distance) {
      min_distance = distance;
      nearest_correction = entry;
    }
  }
  const double scale = static_cast<double>(micro_batch_size) / static_cast<double>(nearest_correction->first);
  return round_bytes(linear + nearest_correction->second * scale);
}

double CostModel::predict_micro_batch_seconds(int64_t micro_batch_size,
                                              const models::RecomputeBlocks& recompute) const {
  const auto samples = static_cast<double>(micro_batch_size);
  // `language` includes the blocks that keep their attention output, so that its time is
  // subtracted.
  return one_sample_seconds_ + (samples - 1) * seconds_per_extra_sample_ +
         samples * (static_cast<double>(recompute.vision) * vision_block_cost_.seconds +
                    static_cast<double>(recompute.language) * language_block_cost_.seconds -
                    static_cast<double>(recompute.language_selective) * attention_cost_.seconds);
}

double CostModel::predict_step_seconds(double micro_batches, double samples,
                                       const models::RecomputeBlocks& recompute) const {
  // predict_micro_batch_seconds() is linear in the size: size 0 gives the time that each micro-batch takes
  // in addition.
  const double seconds_per_sample =
      predict_micro_batch_seconds(1, recompute) - predict_micro_batch_seconds(0, recompute);
  return micro_batches * predict_micro_batch_seconds(0, recompute) + samples * seconds_per_sample + optimizer_seconds_;
}

std::vector<models::RecomputeBlocks> CostModel::make_recompute_order() const {
  /// A kind of block that is recomputed one by one. A stage is complete before the next one begins.
  struct RecomputeStage {
    int64_t blocks;
    BlockCost block_cost;
    void (*add_block)(models::RecomputeBlocks&);
  };
  // Compares seconds per saved byte without a division, since saved bytes may be 0.
  const auto is_cheaper = [](const RecomputeStage& left, const RecomputeStage& right) {
    return left.block_cost.seconds * right.block_cost.saved_bytes <
           right.block_cost.seconds * left.block_cost.saved_bytes;
  };
  // Stages of the language model: whole blocks, or blocks without attention and then their
  // attention.
  const RecomputeStage whole_block_stage{language_blocks_, language_block_cost_,
                                         [](models::RecomputeBlocks& blocks) { ++blocks.language; }};
  const RecomputeStage stage_without_attention{language_blocks_,
                                               {language_block_cost_.saved_bytes - attention_cost_.saved_bytes,
                                                language_block_cost_.seconds - attention_cost_.seconds},
                                               [](models::RecomputeBlocks& blocks) {
                                                 ++blocks.language;
                                                 ++blocks.language_selective;
                                               }};
  const RecomputeStage attention{language_blocks_, attention_cost_,
                                 [](models::RecomputeBlocks& blocks) { --blocks.language_selective; }};
  std::vector<RecomputeStage> stages{
      {vision_blocks_, vision_block_cost_, [](models::RecomputeBlocks& blocks) { ++blocks.vision; }}};
  if (attention_cost_.seconds > 0 && is_cheaper(stage_without_attention, attention)) {
    stages.push_back(stage_without_attention);
    stages.push_back(attention);
  } else {
    stages.push_back(whole_block_stage);
  }
  std::ranges::stable_sort(stages, is_cheaper);
  std::vector<models::RecomputeBlocks> order{{}};
  for (const RecomputeStage& stage : stages) {
    if (stage.block_cost.saved_bytes <= 0) continue;
    for (int64_t i = 0; i < stage.blocks; ++i) {
      order.push_back(order.back());
      stage.add_block(order.back());
    }
  }
  return order;
}

bool is_attention_worth_keeping(const StepCosts& costs) {
  // An attention output is at most a tenth of a block's activations. If attention takes less than
  // about this share of the time too, recomputing it costs no more per byte than recomputing the
  // rest. 0.08 instead of 0.1 is not tuned.
  constexpr double kMinAttentionShare = 0.08;
  return costs.language_attention_forward.seconds > kMinAttentionShare * costs.language_blocks_forward.seconds;
}

void CostModel::add_measurement(int64_t micro_batch_size, const models::RecomputeBlocks& recompute,
                                int64_t reserved_bytes) {
  byte_corrections_[micro_batch_size] =
      static_cast<double>(reserved_bytes) - predict_linear_bytes(micro_batch_size, recompute);
}

}  // namespace vlmtrain::planner
