#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// The input of plan_evaluation().
struct EvaluationRequest {
  Job job;
  /// The training that holds weights, optimizer state and gradients during the evaluation; nullopt: none.
  std::optional<StepConfig> training = std::nullopt;
  std::vector<SampleGroup> training_samples = {};  ///< of one or two micro-batches
  std::vector<SampleBatch> candidates;             ///< worst batches with max_batch_size samples
  int64_t max_new_tokens = 0;                      ///< of each answer; 0: no answers
  std::optional<int64_t> batch_size = std::nullopt;
  int64_t max_batch_size = 32;  ///< the largest size to try if none is set
  int64_t target_bytes = 0;     ///< preferred limit, for batches of several samples
  int64_t limit_bytes = 0;      ///< limit of a single sample
};

/// The batch size and layout of an evaluation, and its memory with that of the training.
struct EvaluationPlan {
  int64_t batch_size = 1;
  engine::EvaluationLayout layout = {};
  StepPeaks peaks = {};
  bool fits = false;   ///< within limit_bytes; otherwise the evaluation splits batches that run out of memory
  double seconds = 0;  ///< duration of the dry runs

  /// Returns {"batch_size", "vision_tiles_per_pass", "loss_chunk_rows", "allocated_peak_bytes",
  /// "reserved_peak_bytes", "fits"}.
  nlohmann::ordered_json to_json() const;
};

/// Returns the largest batch size within target_bytes, of max_batch_size and its halves, or a single
/// sample within limit_bytes. The last resort is a single sample with one tile per vision pass and small
/// loss chunks. Each candidate is dry-run on `gpu`. Throws the exceptions of DryRunProcess.
/// REQUIRES: gpu has no memory limit.
EvaluationPlan plan_evaluation(const EvaluationRequest& request, const VirtualGpu& gpu);

/// Does the same for the CPU, with dry runs on the meta device. Throws the exceptions of make_cpu_plan().
EvaluationPlan plan_cpu_evaluation(const EvaluationRequest& request);

}  // namespace vlmtrain::planner
