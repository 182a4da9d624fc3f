#include "planner/search/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vlmtrain::planner {

namespace {

double get_reserved_bytes(const DryRunResult& result) {
  return static_cast<double>(result.compute_max_peaks().reserved_bytes);
}

int64_t round_bytes(double bytes) {
  // Keeps extrapolated bytes within int64_t.
  constexpr double kMaxPredictedBytes = 1e18;
  return std::llround(std::clamp(bytes, 0.0, kMaxPredictedBytes));
}

/// Returns the costs of a micro-batch in units of a block's forward pass, for backends that predict
/// no times. A micro-batch takes less than a unit in addition, so that recomputing a block takes
/// longer than any number of micro-batches.
StepCosts make_unit_costs(const models::RecomputeBlockCounts& blocks, int64_t samples) {
  constexpr double kForwardAndBackwardUnits = 3;
  constexpr double kMicroBatchUnits = 0.5;
  StepCosts costs;
  costs.vision_blocks_forward.seconds = static_cast<double>(samples * blocks.vision);
  costs.language_blocks_forward.seconds = static_cast<double>(samples * blocks.language);
  costs.passes_seconds = costs.total.seconds =
      kForwardAndBackwardUnits * (costs.vision_blocks_forward.seconds + costs.language_blocks_forward.seconds) +
      kMicroBatchUnits;
  return costs;
}

}  // namespace

CostModel::CostModel(const ProbeResults& probe_results) : blocks_(probe_results.blocks) {
  const StepCosts costs = probe_results.one_sample_result.costs.value_or(make_unit_costs(blocks_, 1));
  one_sample_bytes_ = get_reserved_bytes(probe_results.one_sample_result);
  one_sample_seconds_ = costs.passes_seconds;
  link_seconds_ = costs.link;
  optimizer_seconds_ = costs.optimizer.seconds;
  const auto make_recompute_effect = [this](const std::optional<DryRunResult>& recomputed_result, int64_t blocks,
                                            double forward_seconds) {
    if (!recomputed_result || blocks == 0) return RecomputeEffect{};
    const double saved_bytes = std::max(0.0, one_sample_bytes_ - get_reserved_bytes(*recomputed_result));
    return RecomputeEffect{saved_bytes / static_cast<double>(blocks), forward_seconds / static_cast<double>(blocks)};
  };
  vision_recompute_effect_ =
      make_recompute_effect(probe_results.vision, blocks_.vision, costs.vision_blocks_forward.seconds);
  language_recompute_effect_ =
      make_recompute_effect(probe_results.language, blocks_.language, costs.language_blocks_forward.seconds);
  if (probe_results.language_selective && blocks_.language > 0) {
    const double attention_bytes = std::max(
        0.0, get_reserved_bytes(*probe_results.language_selective) - get_reserved_bytes(*probe_results.language));
    const auto blocks = static_cast<double>(blocks_.language);
    attention_recompute_effect_ = {attention_bytes / blocks, costs.language_attention_forward.seconds / blocks};
  }
  bytes_per_extra_sample_ =
      probe_results.two_samples ? get_reserved_bytes(*probe_results.two_samples) - one_sample_bytes_ : 0;
  seconds_per_extra_sample_ =
      probe_results.two_samples
          ? probe_results.two_samples->costs.value_or(make_unit_costs(blocks_, 2)).passes_seconds - one_sample_seconds_
          : 0;
}

double CostModel::predict_uncorrected_bytes(int64_t micro_batch_size,
                                            const models::RecomputeBlockCounts& recompute) const {
  const double saved_bytes =
      static_cast<double>(recompute.vision) * vision_recompute_effect_.saved_bytes +
      static_cast<double>(recompute.language) * language_recompute_effect_.saved_bytes -
      static_cast<double>(recompute.language_selective) * attention_recompute_effect_.saved_bytes;
  // The savings are measured with one sample. They may exceed the memory of a further sample, whose
  // memory cannot be negative.
  const double extra_sample_bytes = std::max(0.0, bytes_per_extra_sample_ - saved_bytes);
  return one_sample_bytes_ - saved_bytes + static_cast<double>(micro_batch_size - 1) * extra_sample_bytes;
}

int64_t CostModel::predict_reserved_bytes(int64_t micro_batch_size,
                                          const models::RecomputeBlockCounts& recompute) const {
  const double uncorrected_bytes = predict_uncorrected_bytes(micro_batch_size, recompute);
  if (reserved_byte_corrections_.empty()) return round_bytes(uncorrected_bytes);
  // Uses the correction of the nearest dry-run micro-batch size, by ratio, scaled with the number
  // of samples.
  auto nearest_correction = reserved_byte_corrections_.begin();
  double min_distance = std::numeric_limits<double>::infinity();
  for (auto entry = reserved_byte_corrections_.begin(); entry != reserved_byte_corrections_.end(); ++entry) {
    const double distance =
        std::abs(std::log(static_cast<double>(entry->first) / static_cast<double>(micro_batch_size)));
    if (distance < min_distance) {
      min_distance = distance;
      nearest_correction = entry;
    }
  }
  const double scale = static_cast<double>(micro_batch_size) / static_cast<double>(nearest_correction->first);
  return round_bytes(uncorrected_bytes + nearest_correction->second * scale);
}

double CostModel::predict_micro_batch_seconds(int64_t micro_batch_size,
                                              const models::RecomputeBlockCounts& recompute) const {
  return link_seconds_.compute_total(predict_passes_seconds(micro_batch_size, recompute), /*micro_batches=*/1);
}

double CostModel::predict_passes_seconds(int64_t micro_batch_size,
                                         const models::RecomputeBlockCounts& recompute) const {
  const auto samples = static_cast<double>(micro_batch_size);
  // `language` includes the blocks that keep their attention output, so that its time is
  // subtracted.
  return one_sample_seconds_ + (samples - 1) * seconds_per_extra_sample_ +
         samples * (static_cast<double>(recompute.vision) * vision_recompute_effect_.seconds +
                    static_cast<double>(recompute.language) * language_recompute_effect_.seconds -
                    static_cast<double>(recompute.language_selective) * attention_recompute_effect_.seconds);
}

double CostModel::predict_step_seconds(double micro_batches, double samples,
                                       const models::RecomputeBlockCounts& recompute) const {
  // predict_passes_seconds() is linear in the size: size 0 gives the time that each micro-batch takes in
  // addition.
  const double seconds_per_sample = predict_passes_seconds(1, recompute) - predict_passes_seconds(0, recompute);
  const double passes_seconds = micro_batches * predict_passes_seconds(0, recompute) + samples * seconds_per_sample;
  return link_seconds_.compute_total(passes_seconds, micro_batches) + optimizer_seconds_;
}

std::vector<models::RecomputeBlockCounts> CostModel::make_recompute_order() const {
  /// A kind of block that is recomputed one by one. A stage is complete before the next one begins.
  struct RecomputeStage {
    int64_t blocks;
    RecomputeEffect recompute_effect;
    void (*add_block)(models::RecomputeBlockCounts&);
  };
  // Compares seconds per saved byte without a division, since saved bytes may be 0.
  const auto is_cheaper = [](const RecomputeStage& left, const RecomputeStage& right) {
    return left.recompute_effect.seconds * right.recompute_effect.saved_bytes <
           right.recompute_effect.seconds * left.recompute_effect.saved_bytes;
  };
  // Stages of the language model: whole blocks, or blocks without attention and then their
  // attention.
  const RecomputeStage full_block_stage{blocks_.language, language_recompute_effect_,
                                        [](models::RecomputeBlockCounts& blocks) { ++blocks.language; }};
  const RecomputeStage selective_block_stage{
      blocks_.language,
      {language_recompute_effect_.saved_bytes - attention_recompute_effect_.saved_bytes,
       language_recompute_effect_.seconds - attention_recompute_effect_.seconds},
      [](models::RecomputeBlockCounts& blocks) {
        ++blocks.language;
        ++blocks.language_selective;
      }};
  const RecomputeStage attention{blocks_.language, attention_recompute_effect_,
                                 [](models::RecomputeBlockCounts& blocks) { --blocks.language_selective; }};
  std::vector<RecomputeStage> stages{
      {blocks_.vision, vision_recompute_effect_, [](models::RecomputeBlockCounts& blocks) { ++blocks.vision; }}};
  if (attention_recompute_effect_.seconds > 0 && is_cheaper(selective_block_stage, attention)) {
    stages.push_back(selective_block_stage);
    stages.push_back(attention);
  } else {
    stages.push_back(full_block_stage);
  }
  std::ranges::stable_sort(stages, is_cheaper);
  std::vector<models::RecomputeBlockCounts> order{{}};
  for (const RecomputeStage& stage : stages) {
    if (stage.recompute_effect.saved_bytes <= 0) continue;
    for (int64_t i = 0; i < stage.blocks; ++i) {
      order.push_back(order.back());
      stage.add_block(order.back());
    }
  }
  return order;
}

bool is_selective_checkpointing_worthwhile(const StepCosts& costs) {
  // An attention output is at most a tenth of a block's activations. If attention takes less than
  // about this share of the time too, recomputing it costs no more per byte than recomputing the
  // rest. 0.08 instead of 0.1 is not tuned.
  constexpr double kMinAttentionTimeFraction = 0.08;
  return costs.language_attention_forward.seconds > kMinAttentionTimeFraction * costs.language_blocks_forward.seconds;
}

void CostModel::add_measurement(int64_t micro_batch_size, const models::RecomputeBlockCounts& recompute,
                                int64_t reserved_bytes) {
  reserved_byte_corrections_[micro_batch_size] =
      static_cast<double>(reserved_bytes) - predict_uncorrected_bytes(micro_batch_size, recompute);
}

}  // namespace vlmtrain::planner
