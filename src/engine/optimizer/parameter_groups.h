#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "vlmtrain/engine/optimizer/learning_rates.h"
#include "vlmtrain/engine/settings/optimizer_settings.h"
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

}  // namespace vlmtrain::engine
