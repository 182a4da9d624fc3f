#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {

/// Short rehearsals of one micro-batch that an estimate is made from.
struct ProbeResults {
  DryRunResult one_sample;                  ///< one sample, nothing recomputed; with costs and detail
  std::optional<DryRunResult> two_samples;  ///< two samples; nothing where a rank has only one
  std::optional<DryRunResult> vision;  ///< one sample, the whole tower recomputed; nothing where it has no activations
  std::optional<DryRunResult> language;  ///< one sample, the whole language model recomputed
  std::optional<DryRunResult>
      language_without_attention;  ///< the same with its attention kept; nothing where that is not worth a probe
};

/// Whether attention takes so much of the language model's time that to keep what it gives may be worth the memory.
bool is_attention_worth_keeping(const StepCosts& costs);

/// A guess at what a plan takes, for plans that are not rehearsed: straight lines through the probes, moved so that
/// they pass through every rehearsal that was done since.
class CostModel {
 public:
  explicit CostModel(const ProbeResults& probes);

  int64_t reserved_bytes(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const;
  /// Forward and backward pass of one micro-batch.
  double micro_batch_seconds(int64_t micro_batch_size, const models::RecomputeBlocks& recompute) const;
  /// Of a step of so many samples in so many micro-batches, which need not be equal ones.
  double step_seconds(double micro_batches, double samples, const models::RecomputeBlocks& recompute) const;
  double optimizer_seconds() const { return optimizer_seconds_; }

  /// What to recompute as more and more has to be: from none to all, one block more at each step, first what costs
  /// least time for the bytes that it saves. Blocks of the language model are first recomputed but for their attention,
  /// then with it, where that costs less than blocks as a whole.
  std::vector<models::RecomputeBlocks> make_recompute_order() const;

  /// What a full rehearsal found.
  void add_measurement(int64_t micro_batch_size, const models::RecomputeBlocks& recompute, int64_t reserved_bytes);

 private:
  /// One more block in each sample.
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
  BlockCost attention_;  // what of a block of the language model is saved and spent where its attention is not kept
  double one_sample_seconds_;
  double seconds_per_extra_sample_;
  double optimizer_seconds_;
  std::map<int64_t, double> corrections_;  // by micro-batch size, bytes
};

}  // namespace vlmtrain::planner
