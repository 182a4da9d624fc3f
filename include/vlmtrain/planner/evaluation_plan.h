#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/target.h"

namespace vlmtrain::planner {

/// The input of plan_evaluation().
struct EvaluationRequest {
  Job job;
  PlanTarget target = {};
  /// The StepConfig of a training run whose weights, gradients and optimizer state stay in memory
  /// during the evaluation; nullopt: evaluation without training.
  std::optional<StepConfig> training_step_config = std::nullopt;
  std::vector<SampleGroup> training_samples = {};    ///< a training step of one or two micro-batches
  std::vector<SampleBatch> worst_batches;            ///< each with up to max_batch_size samples; not empty
  int64_t max_new_tokens = 0;                        ///< generated tokens per sample; 0: no generation
  std::optional<int64_t> batch_size = std::nullopt;  ///< set by the user; nullopt: the planner chooses
  int64_t max_batch_size = 32;                       ///< the largest size to try if batch_size is not set
  int64_t target_reserved_bytes = 0;  ///< preferred limit of reserved bytes, for batches of several samples
  int64_t limit_bytes = 0;            ///< limit of reserved bytes for a single sample
};

/// The batch size and layout of an evaluation, and the memory peak of evaluation and training state
/// together.
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

/// Plans an evaluation. Tries max_batch_size, half of it, a quarter of it and so on, and takes the
/// first size that needs at most target_reserved_bytes. A single sample may need up to limit_bytes.
/// The last resort is a single sample with one tile per vision pass and small loss chunks. A
/// batch_size that is set replaces all these sizes. Each size is dry-run in the backend of the
/// target. Throws the exceptions of make_backend() and Backend::dry_run().
EvaluationPlan plan_evaluation(const EvaluationRequest& request);

}  // namespace vlmtrain::planner
