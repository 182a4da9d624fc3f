#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {

/// The probes that a CostModel is fitted to: short dry runs of one micro-batch.
struct ProbeResults {
  models::RecomputeBlockCounts blocks;  ///< of the model
  /// One sample without recomputation. Has costs if the backend predicts times. Otherwise a forward
  /// pass of a block takes one unit of time, a backward pass two, and a micro-batch less than one.
  DryRunResult one_sample_result;
  /// Two samples without recomputation. nullopt if a rank has only one sample per step.
  std::optional<DryRunResult> two_samples;
  /// One sample with all blocks of the vision tower recomputed. nullopt if the sample has no
  /// images.
  std::optional<DryRunResult> vision;
  /// One sample with all blocks of the language model recomputed. nullopt if the model has none.
  std::optional<DryRunResult> language;
  /// The same as `language`, but each block keeps the output of its attention. nullopt if
  /// !is_selective_checkpointing_worthwhile().
  std::optional<DryRunResult> language_selective;
};

/// Returns whether attention takes such a share of the language model's time that keeping its
/// outputs may be worth the memory.
bool is_selective_checkpointing_worthwhile(const StepCosts& costs);

/// A linear model of the memory and time of a StepConfig in the micro-batch size and the numbers of
/// recomputed blocks; micro-batches that take less time than the link to host memory wait for it. It is fitted to
/// probes and corrected with full dry runs. Not thread-safe.
class CostModel {
 public:
  explicit CostModel(const ProbeResults& probe_results);

  /// Returns the predicted peak of reserved bytes. Exact for the last measurement of a micro-batch
  /// size.
  int64_t predict_reserved_bytes(int64_t micro_batch_size, const models::RecomputeBlockCounts& recompute) const;
  /// Returns the predicted duration of the forward and backward pass of a micro-batch.
  double predict_micro_batch_seconds(int64_t micro_batch_size, const models::RecomputeBlockCounts& recompute) const;
  /// Returns the predicted duration of a step with this many samples in this many micro-batches,
  /// whose sizes may differ. Without communication.
  double predict_step_seconds(double micro_batches, double samples,
                              const models::RecomputeBlockCounts& recompute) const;
  double optimizer_seconds() const { return optimizer_seconds_; }

  /// Returns a sequence of recomputations from no block to all blocks. Each adds one block to the
  /// previous one; blocks with the lowest time per saved byte come first. If it is cheaper per
  /// saved byte, blocks of the language model are first recomputed except for their attention, and
  /// then completely.
  std::vector<models::RecomputeBlockCounts> make_recompute_order() const;

  /// Corrects the model with the reserved peak of a full dry run.
  void add_measurement(int64_t micro_batch_size, const models::RecomputeBlockCounts& recompute, int64_t reserved_bytes);

 private:
  /// The effect of recomputing one more block, per sample.
  struct RecomputeEffect {
    double saved_bytes = 0;
    double seconds = 0;
  };

  /// Returns predict_micro_batch_seconds() without waits for the link to host memory.
  double predict_passes_seconds(int64_t micro_batch_size, const models::RecomputeBlockCounts& recompute) const;
  double predict_uncorrected_bytes(int64_t micro_batch_size, const models::RecomputeBlockCounts& recompute) const;

  models::RecomputeBlockCounts blocks_;
  double one_sample_bytes_;
  double bytes_per_extra_sample_;
  RecomputeEffect vision_recompute_effect_;
  RecomputeEffect language_recompute_effect_;
  // Effect of recomputing the attention of a block of the language model too, instead of keeping
  // its output.
  RecomputeEffect attention_recompute_effect_;
  double one_sample_seconds_;
  double seconds_per_extra_sample_;
  LinkSeconds link_seconds_;
  double optimizer_seconds_;
  std::map<int64_t, double> reserved_byte_corrections_;  // measured minus predicted bytes, by micro-batch size
};

}  // namespace vlmtrain::planner
