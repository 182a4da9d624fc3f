#pragma once

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/options.h"
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

/// What is in host memory (memory.offload), in ascending order of saved memory. No effect on the CPU.
enum class Offload {
  kNone,
  kOptimizer,  ///< masters and moments of AdamW, which the GPU reads and writes in place (memory::HostArena)
  kWeights,    ///< also the weights of blocks, which are copied to the GPU before they run (ShardedBlocks)
  kGradients,  ///< also the sums of the gradients of these weights, in place
};

/// Returns whether the weights of blocks are in host memory.
constexpr bool offloads_weights(Offload offload) {
  return offload >= Offload::kWeights;
}

/// The memory of a run on the host.
struct HostMemorySettings {
  Offload offload = Offload::kNone;
  bool offloads_activations =
      false;  ///< whether the inputs of recomputed blocks are there (memory.offload_activations)
  /// Bytes for these inputs; those that exceed it stay on the device. nullopt: as many as they need.
  std::optional<int64_t> max_activation_bytes = std::nullopt;
};

/// Returns the value of `memory.offload`: "none", "optimizer", "weights", "gradients".
constexpr const char* to_string(Offload offload) {
  switch (offload) {
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kWeights:
      return "weights";
    case Offload::kGradients:
      return "gradients";
    case Offload::kNone:
      break;
  }
  return "none";
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

/// The rule by which an optimizer updates a parameter.
enum class OptimizerKind {
  kAdamW,
  /// For weights of Linears and their adapters; AdamW updates all other parameters.
  kMuon,
};

/// The default, and the rule of all parameters that another rule cannot update.
inline constexpr OptimizerKind kDefaultOptimizer = OptimizerKind::kAdamW;

/// The properties of a rule.
struct OptimizerInfo {
  OptimizerKind kind;
  const char* name;                  ///< value of `training.optimizer`
  bool is_elementwise;               ///< false: a rank must have a whole parameter to update it
  bool supports_compressed_moments;  ///< whether moments may be in bf16 or 8 bits
};

/// Returns the properties of a rule.
const OptimizerInfo& get_optimizer_info(OptimizerKind kind);

/// The data type of an optimizer's moments. Tensors with fewer than 4,096 elements always have fp32
/// moments, as in bitsandbytes.
enum class OptimizerStateDtype {
  kFp32,
  /// With stochastic rounding. A second moment decays by 0.1 % per step (beta2 = 0.999). Rounded to
  /// the nearest bf16 value, it would never change, because these values are 0.4 to 0.8 % apart.
  kBf16,
  /// Block-wise with a dynamic code (Dettmers et al. 2022, 8-bit Optimizers via Block-wise
  /// Quantization, arXiv 2110.02861), as bitsandbytes' AdamW8bit and transformers' adamw_bnb_8bit.
  /// 256 elements share a scale; embeddings have fp32 moments, unless compresses_embedding_states.
  k8Bit,
};

/// Returns the value of `training.optimizer_states`: "fp32", "bf16", "8bit".
std::string to_string(OptimizerStateDtype state_dtype);

/// The fp32 master weights of bf16 weights that AdamW updates. Adapters, weights with fewer than 4,096
/// elements and those of other rules have fp32 masters. Other types of weights require kFp32.
enum class MasterWeights {
  kFp32,
  /// In two halves, of which the weight is one: the same values in 2 bytes instead of 4, except for one
  /// master in 131,072, which moves by one ulp of fp32 (kernels/split_master.h).
  kSplit,
  /// None: the updated weight is rounded stochastically to bf16.
  kStochastic,
};

/// Returns the value of `training.master_weights`: "fp32", "split", "stochastic".
std::string to_string(MasterWeights master_weights);
/// Parses the output of to_string(). Returns nullopt for other text.
std::optional<MasterWeights> parse_master_weights(std::string_view name);

/// The hyperparameters of AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101).
struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// The adjustment of Muon's learning rate to the size of a matrix [rows, columns], as `adjust_lr_fn`
/// of torch.optim.Muon.
enum class MuonLrAdjustment {
  kMatchRmsAdamW,  ///< 0.2 · √max(rows, columns): updates as large as AdamW's (Liu et al. 2025, arXiv 2502.16982)
  kOriginal,       ///< √max(1, rows / columns), as in Jordan's post
};

/// The hyperparameters of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).
struct MuonSettings {
  double momentum = 0.95;
  int64_t ns_steps = 5;  ///< Newton-Schulz iterations
  MuonLrAdjustment lr_adjustment = MuonLrAdjustment::kMatchRmsAdamW;
};

/// Settings of the parameters whose names match any of some patterns. A value that is not set is that of all
/// parameters.
struct ParameterGroupSettings {
  std::vector<std::string> parameters = {};            ///< nn::NamePattern; any of them
  std::optional<double> learning_rate = std::nullopt;  ///< peak
  std::optional<double> weight_decay = std::nullopt;
  std::optional<OptimizerKind> optimizer = std::nullopt;
};

/// The settings of a loss scale.
struct LossScaleSettings {
  double init_scale = 65536;
  bool dynamic = true;             ///< false: constant
  int64_t growth_interval = 2000;  ///< steps without an overflow after which the scale doubles
};

/// The settings of an optimizer.
struct OptimizerSettings {
  OptimizerKind kind = kDefaultOptimizer;
  AdamWSettings adamw = {};
  MuonSettings muon = {};
  double weight_decay = 0.0;   ///< decoupled from the gradient; not for 1-D tensors
  double max_grad_norm = 1.0;  ///< gradients are scaled down to this global norm; 0: no clipping
  std::optional<LossScaleSettings> loss_scale = std::nullopt;  ///< nullopt: no loss scale
  OptimizerStateDtype state_dtype = OptimizerStateDtype::kFp32;
  bool compresses_embedding_states = false;                    ///< whether k8Bit applies to embeddings, too
  std::optional<MasterWeights> master_weights = std::nullopt;  ///< nullopt: kSplit on CUDA, else kFp32
  uint64_t seed = 0;                                           ///< seed of the stochastic rounding
  std::vector<ParameterGroupSettings> groups = {};             ///< each parameter matches at most one
  std::vector<std::string> no_weight_decay = {};               ///< nn::NamePattern of parameters without weight decay
  double loraplus_lr_ratio = 1;  ///< factor of the learning rate of LoRA's B (arXiv 2402.12354)
  /// Whether patterns may match no trained parameter: in plans that change which parameters are
  /// trained.
  bool allows_unmatched_patterns = false;

  /// Returns whether the rule is set for all parameters or for a group.
  bool uses(OptimizerKind rule) const;
  /// Returns whether a rank must have some parameters whole to update them.
  bool needs_whole_parameters() const;
  /// Returns whether the moments of all rules may be in bf16 or 8 bits.
  bool supports_compressed_moments() const;
  /// Returns `master_weights`, or its default; kFp32 for weights of another type than bf16.
  MasterWeights choose_master_weights(bool is_cuda, bool has_bf16_weights) const;
};

/// Returns the keys of hyperparameters of rules that `settings` does not use.
std::vector<std::string_view> list_unused_rule_keys(const OptimizerSettings& settings);

/// Throws UserError (kUsage) if a rule does not support the data type of the moments.
void check_optimizer_settings(const OptimizerSettings& settings);

/// Adds the choice of rules and their hyperparameters to `table`, which writes parsed values to
/// `settings`. `settings` must outlive `table`.
void declare_options(OptionTable& table, OptimizerSettings& settings);

/// Conversions for the protocol of dry runs.
void to_json(nlohmann::json& json, const OptimizerSettings& settings);
void from_json(const nlohmann::json& json, OptimizerSettings& settings);

}  // namespace vlmtrain::engine
