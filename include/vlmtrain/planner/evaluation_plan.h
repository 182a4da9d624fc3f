#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// An evaluation whose batch is to be found.
struct EvaluationRequest {
  Job job;
  /// What is done between evaluations, and with which samples: its weights, optimizer states and gradients stay in
  /// memory meanwhile. Nothing: no training.
  std::optional<StepConfig> training = std::nullopt;
  std::vector<SampleGroup> training_samples = {};  ///< of a micro-batch or two
  std::vector<SampleBatch> candidates;             ///< the worst batches, of as many samples as are tried at most
  int64_t max_new_tokens = 0;                      ///< 0: no answers
  std::optional<int64_t> batch_size = std::nullopt;
  int64_t max_batch_size = 32;  ///< that is tried where none is fixed
  int64_t target_bytes = 0;     ///< a batch that takes more is not chosen while a smaller one can be
  int64_t limit_bytes = 0;      ///< that may be taken
};

/// How an evaluation is done, and what that takes, with what the training holds.
struct EvaluationPlan {
  int64_t batch_size = 1;
  engine::EvaluationLayout layout = {};
  StepPeaks peaks = {};
  bool fits = false;   ///< within limit_bytes; if not, the guard of the evaluation cuts what does not fit
  double seconds = 0;  ///< that the rehearsals took

  /// {"batch_size", "vision_tiles_per_pass", "loss_chunk_rows", "allocated_peak_bytes", "reserved_peak_bytes", "fits"}
  nlohmann::ordered_json to_json() const;
};

/// The largest batch, of powers of two from `max_batch_size` down, that stays within target_bytes, or a single sample
/// within limit_bytes; at last a single sample whose tiles pass the tower one by one and whose loss is computed in
/// small chunks. Each is rehearsed on `gpu`, which has no limit. Throws as DryRunProcess does.
EvaluationPlan plan_evaluation(const EvaluationRequest& request, const VirtualGpu& gpu);

/// The same on the CPU, rehearsed on the meta device. Throws as make_cpu_plan.
EvaluationPlan plan_cpu_evaluation(const EvaluationRequest& request);

}  // namespace vlmtrain::planner
