#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/optimizer/compressed_states.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// The rule and the hyperparameters of a trained parameter. Parameters with equal values are updated
/// together, in the order of these fields.
struct ParameterGroup {
  OptimizerKind rule = kDefaultOptimizer;
  nn::Component component = nn::Component::kUnused;  ///< determines the learning rate if none is set
  bool has_weight_decay = false;
  double weight_decay = 0;                             ///< 0 unless has_weight_decay
  std::optional<double> learning_rate = std::nullopt;  ///< peak
  double learning_rate_factor = 1;

  bool operator<(const ParameterGroup& other) const {
    return std::tie(rule, component, has_weight_decay, weight_decay, learning_rate, learning_rate_factor) <
           std::tie(other.rule, other.component, other.has_weight_decay, other.weight_decay, other.learning_rate,
                    other.learning_rate_factor);
  }

  /// Returns the learning rate of a step.
  double get_learning_rate(const LearningRates& rates) const {
    return learning_rate_factor *
           (learning_rate ? *learning_rate * rates.schedule_factor : rates.get_learning_rate(component));
  }
};

/// Returns the group of each parameter of `store` that requires gradients, in the store's order.
/// Throws UserError (kUsage) if two entries of `settings.groups` match one parameter; and, unless
/// settings.allows_unmatched_patterns, if a pattern matches no trained parameter, or if an entry
/// sets a rule that can update none of its parameters.
std::vector<ParameterGroup> assign_parameter_groups(const nn::ParameterStore& store, const OptimizerSettings& settings);

/// A parameter, or a slice of it, and its state in an update. All tensors have the same number of
/// elements, except for `steps` and the compressed moments of a fused rule.
struct UpdateTensor {
  at::Tensor master{};                ///< fp32; undefined for a fused rule if it is split or rounded away
  at::Tensor gradient;                ///< fp32; a rule may overwrite it
  at::Tensor weight{};                ///< 16-bit copy of the master, which a fused rule writes; undefined without one
  at::Tensor low_bits{};              ///< int16: low halves of split masters (kernels/split_master.h)
  at::Tensor scratch{};               ///< int32, of a tensor of a chunk
  at::Tensor steps;                   ///< fp32 scalar: number of updates, this one included
  std::vector<at::Tensor> moments{};  ///< fp32, in the order of UpdateRule::moment_names()
  std::vector<at::Tensor> absmax{};   ///< of compressed 8-bit moments; empty otherwise
  uint32_t parameter_index = 0;       ///< index among the trained parameters
};

/// Tensors with the same rule and hyperparameters that are updated together.
struct UpdateGroup {
  ParameterGroup hyperparameters;
  bool is_fused = false;  ///< UpdateRule::is_fused() of its tensors
  std::vector<UpdateTensor> tensors{};
  /// The chunk of a rule that is not fused, if moments or masters are not in fp32. They are expanded
  /// before the update and compressed after it. Null without one.
  std::shared_ptr<const Chunk> chunk{};
  CompressedStates* compressed_states = nullptr;  ///< the moments of the chunk; null: in fp32
  MasterWeights master_weights = MasterWeights::kFp32;
};

/// Memory that a rule allocates for an update.
struct UpdateScratch {
  virtual ~UpdateScratch() = default;
};

/// The inputs that all groups of an update share.
struct UpdateInputs {
  double learning_rate = 0;     ///< of the group
  at::Tensor gradient_divisor;  ///< fp32 scalar that divides the gradients; undefined: 1
  at::Tensor skipped;           ///< fp32 scalar: 1 if the update must change nothing, else 0
  at::Tensor skipped_bool;      ///< the same as bool; defined if needs_bool_skip_flag() or moments are compressed
  uint64_t rounding_seed = 0;   ///< seed of the stochastic rounding in this update
  const MomentTables* tables = nullptr;    ///< tables of compressed moments; null without them
  const UpdateScratch* scratch = nullptr;  ///< UpdateRule::allocate_scratch()
};

/// The arithmetic of an optimizer. Stateless: all state is in the tensors of the groups.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  /// Returns the names of the moments in a checkpoint. At least one; the first one belongs to no
  /// other rule.
  virtual std::vector<std::string> moment_names() const = 0;

  /// Returns whether apply() reads compressed moments and writes 16-bit weights itself, for
  /// parameters on the device and of the dtype of `weight`.
  virtual bool is_fused(const at::Tensor& /*weight*/) const { return false; }

  /// Returns whether apply() reads UpdateInputs::skipped_bool.
  virtual bool needs_bool_skip_flag() const { return false; }

  /// Allocates the memory that apply() needs for any of these groups of the rule; null if it needs
  /// none.
  virtual std::unique_ptr<UpdateScratch> allocate_scratch(const std::vector<const UpdateGroup*>& /*groups*/) const {
    return nullptr;
  }

  /// Updates masters and moments of the group. Changes nothing if the step is skipped. Allocates no
  /// tensor memory.
  virtual void apply(const UpdateGroup& group, const UpdateInputs& inputs) const = 0;
};

/// An entry of the table of rules.
struct UpdateRuleEntry {
  OptimizerKind kind;
  /// The first of UpdateRule::moment_names(), by which a saved state shows that it has moments of a
  /// parameter.
  const char* first_moment_name;
  /// Returns whether the rule can update the parameter. AdamW updates the others.
  bool (*can_update)(const nn::Parameter& parameter);
  std::unique_ptr<UpdateRule> (*make)(const OptimizerSettings& settings);
};

/// Returns the entry of a rule.
const UpdateRuleEntry& get_update_rule(OptimizerKind kind);

/// The rules of an optimizer.
class UpdateRules {
 public:
  /// Creates all rules.
  explicit UpdateRules(const OptimizerSettings& settings);

  const UpdateRule& get(OptimizerKind kind) const { return *rules_.at(kind); }
  /// Returns UpdateRule::allocate_scratch() of each rule for its groups.
  std::map<OptimizerKind, std::unique_ptr<UpdateScratch>> allocate_scratch(
      const std::vector<UpdateGroup>& groups) const;

 private:
  std::map<OptimizerKind, std::unique_ptr<UpdateRule>> rules_;
};

}  // namespace vlmtrain::engine
