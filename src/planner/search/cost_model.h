#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {

/// The short dry runs of one micro-batch that a CostModel is fitted to.
struct ProbeResults {
  DryRunResult one_sample;                  ///< one sample without recomputation; with costs and detail
  std::optional<DryRunResult> two_samples;  ///< two samples; nullopt if a rank has only one
  std::optional<DryRunResult> vision;  ///< one sample with the whole tower recomputed; nullopt if it has no activations
  std::optional<DryRunResult> language;  ///< one sample with the whole language model recomputed
  std::optional<DryRunResult>
      language_without_attention;  ///< the same with attention outputs kept; nullopt if that is not worth a probe
};

/// Returns whether attention takes so much of the language model's time that keeping its outputs
/// may be worth the memory.
bool is_attention_worth_keeping(const StepCosts& costs);

/// A linear model of the memory and time of a StepConfig, fitted to probes and corrected to agree
/// with all dry runs since.
class CostModel {
 public:
  explicit CostModel(const ProbeResults& probes);

  int64_t reserved_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const;
  /// Returns the time of the forward and backward pass of a micro-batch.
  double micro_batch_seconds(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const;
  /// Returns the time of a step with this many samples in this many micro-batches, whose sizes may
  /// differ.
  double step_seconds(double micro_batches, double samples, const models::RecomputeBlocks& recompute) const;
  double optimizer_seconds() const { return optimizer_seconds_; }

  /// Returns recomputations from none to all, each with one more block, in increasing order of time
  /// per saved byte. Blocks of the language model first keep their attention outputs if that costs
  /// less per byte.
  std::vector<models::RecomputeBlocks> make_recompute_order() const;

  /// Corrects the model with the result of a full dry run.
  void add_measurement(int64_t micro_batch_size, const models::RecomputeBlocks& recompute, int64_t reserved_bytes);

 private:
  /// One more recomputed block per sample.
  struct BlockCost {
    double saved_bytes = 0;
    double seconds = 0;
  };

  double linear_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const;

  int64_t vision_blocks_;
  int64_t language_blocks_;
  double one_sample_bytes_;
  double bytes_per_extra_sample_;
  BlockCost vision_;
  BlockCost language_;
  BlockCost attention_;  // difference per block of the language model if its attention output is not kept
  double one_sample_seconds_;
  double seconds_per_extra_sample_;
  double optimizer_seconds_;
  std::map<int64_t, double> corrections_;  // bytes by micro-batch size
};

}  // namespace vlmtrain::planner
