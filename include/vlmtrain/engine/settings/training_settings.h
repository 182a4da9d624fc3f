#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <vector>

#include "vlmtrain/nn/weights/shard.h"

namespace vlmtrain::engine {

using nn::ElementRange;
using nn::kShardAlignment;
using nn::Shard;

/// The shape of the learning rate schedule after the warm-up.
enum class ScheduleShape { kCosine, kLinear, kConstant };

/// A learning rate schedule: linear warm-up from zero, then cosine or linear decay to zero, or
/// constant.
struct LearningRateSchedule {
  ScheduleShape shape = ScheduleShape::kCosine;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  /// Returns the factor of the peak learning rate in step `step`, counted from 0. During the
  /// warm-up it is (step + 1) / warmup_steps, so no step has rate 0. After the warm-up, with p =
  /// (step − warmup_steps) / (total_steps − warmup_steps) ≤ 1, it is ½ (1 + cos π p) for cosine, 1
  /// − p for linear, and 1 for constant.
  double compute_factor(int64_t step) const {
    if (step < warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (shape == ScheduleShape::kConstant) return 1.0;
    const double decay_steps = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
    const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / decay_steps);
    if (shape == ScheduleShape::kLinear) return 1.0 - progress;
    return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
};

/// The state that is sharded over ranks (ZeRO; Rajbhandari et al. 2020, arXiv 1910.02054), in
/// ascending order of saved memory.
enum class ShardingStrategy {
  kNone,       ///< nothing
  kOptimizer,  ///< AdamW's moments and fp32 master weights: ZeRO stage 1
  kHybrid,     ///< also weights and gradients of blocks, over the ranks of a node; nodes are replicas
  kFull,       ///< the same state as kHybrid, over all ranks: ZeRO stage 3
};

/// Returns the name in the configuration and in reports.
constexpr const char* to_string(ShardingStrategy sharding) {
  switch (sharding) {
    case ShardingStrategy::kOptimizer:
      return "optimizer";
    case ShardingStrategy::kFull:
      return "full";
    case ShardingStrategy::kHybrid:
      return "hybrid";
    case ShardingStrategy::kNone:
      break;
  }
  return "none";
}

/// Returns whether the blocks' weights are sharded.
constexpr bool shards_blocks(ShardingStrategy sharding) {
  return sharding == ShardingStrategy::kFull || sharding == ShardingStrategy::kHybrid;
}

/// The settings of a step for the tasks of its samples (data::Sample::task_index).
struct TaskSettings {
  int64_t num_tasks = 0;                ///< of the run; below 2, tasks are not distinguished
  std::vector<double> weights = {};     ///< weight of each task's label tokens in the loss; empty: all 1
  bool measure_gradient_norms = false;  ///< for GradNorm
  /// Whether gradients are summed by task, and conflicts are resolved by PCGrad. Each micro-batch
  /// then has samples of one task.
  bool resolve_gradient_conflicts = false;
  uint64_t seed = 0;  ///< seed of the step for the orders of PCGrad

  bool is_multi_task() const { return num_tasks > 1; }
};

/// The number of samples and label tokens of a task.
struct TaskCounts {
  int64_t samples = 0;
  int64_t label_tokens = 0;
  double label_weight = 0;  ///< sum of the weights of the label tokens (data::Sample::label_weights)
};

/// The results of a step for a task.
struct TaskResult {
  TaskCounts counts;
  double loss = 0;      ///< mean cross-entropy of its label tokens, with their weights, not the task's; 0 without any
  double accuracy = 0;  ///< fraction of its label tokens predicted correctly
  double gradient_norm = 0;  ///< GradNorm's G_i; 0 unless TaskSettings::measure_gradient_norms
};

/// The terms of a loss over text and masks, divided by their normalizers, without their weights.
struct TextAndMaskLosses {
  double text = 0;  ///< weighted mean of the cross-entropy of the label tokens
  double bce = 0;   ///< mean binary cross-entropy of the masks' pixels
  double dice = 0;  ///< mean Dice loss of the masks
};

/// The weights of the terms of a loss over text and masks.
struct TextAndMaskLossWeights {
  double text = 1.0;  ///< cross-entropy of the label tokens
  double bce = 2.0;   ///< binary cross-entropy of the masks' pixels
  double dice = 0.5;  ///< Dice loss of the masks

  bool operator==(const TextAndMaskLossWeights&) const = default;
};

/// The settings of an objective.
struct ObjectiveSettings {
  TaskSettings tasks = {};
  std::optional<TextAndMaskLossWeights> masks = std::nullopt;  ///< for models with a mask decoder; nullopt: text only
};

/// The metrics of a step in addition to the loss.
struct ObjectiveMetrics {
  std::vector<TaskResult> tasks;           ///< empty for a single task
  std::optional<TextAndMaskLosses> masks;  ///< for models with a mask decoder
};

}  // namespace vlmtrain::engine
