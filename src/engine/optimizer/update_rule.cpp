#include "engine/optimizer/update_rule.h"

#include <ATen/ops/_fused_adamw.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/optimizer/muon.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::engine {

namespace {

constexpr const char* kFirstMoment = "first_moment";

std::optional<at::Tensor> to_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional{tensor} : std::nullopt;
}

/// AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101), with the moments `first_moment` and
/// `second_moment`, by the custom kernel, or else by ATen's fused kernel.
class AdamW final : public UpdateRule {
 public:
  explicit AdamW(const OptimizerSettings& settings) : settings_(settings.adamw) {}

  std::vector<std::string> moment_names() const override { return {kFirstMoment, "second_moment"}; }

  /// The custom kernel does not support fp64 weights, which tests use.
  bool is_fused(const at::Tensor& weight) const override {
    return kernels::is_available(kernels::Kernel::kAdamW, weight);
  }

  void apply(const UpdateGroup& group, const UpdateInputs& inputs) const override {
    if (group.is_fused) {
      apply_custom_kernel(group, inputs);
    } else {
      apply_aten_kernel(group, inputs);
    }
  }

 private:
  void apply_custom_kernel(const UpdateGroup& group, const UpdateInputs& inputs) const {
    kernels::AdamWStep step{.learning_rate = inputs.learning_rate,
                            .beta1 = settings_.beta1,
                            .beta2 = settings_.beta2,
                            .epsilon = settings_.epsilon,
                            .weight_decay = group.hyperparameters.weight_decay,
                            .divisor = inputs.gradient_divisor,
                            .skip_flag = inputs.skipped,
                            .seed = inputs.rounding_seed};
    if (inputs.tables != nullptr) {
      step.code_values = inputs.tables->codebooks;
      step.rounding_bounds = inputs.tables->padded_bounds;
    }
    std::vector<kernels::AdamWParameter> parameters;
    parameters.reserve(group.tensors.size());
    for (const auto& tensor : group.tensors) {
      auto& parameter = parameters.emplace_back(kernels::AdamWParameter{.master = tensor.master,
                                                                        .gradient = tensor.gradient,
                                                                        .weight = tensor.weight,
                                                                        .low_bits = tensor.low_bits,
                                                                        .steps = tensor.steps,
                                                                        .tensor_id = tensor.parameter_index});
      std::ranges::copy(tensor.moments, parameter.moments.begin());
      std::ranges::copy(tensor.absmax, parameter.absmax.begin());
    }
    kernels::adamw(parameters, step);
  }

  void apply_aten_kernel(const UpdateGroup& group, const UpdateInputs& inputs) const {
    std::vector<at::Tensor> masters, gradients, first_moments, second_moments, steps;
    for (const auto& tensor : group.tensors) {
      masters.push_back(tensor.master);
      gradients.push_back(tensor.gradient);
      first_moments.push_back(tensor.moments.at(0));
      second_moments.push_back(tensor.moments.at(1));
      steps.push_back(tensor.steps);
    }
    at::_fused_adamw_(masters, gradients, first_moments, second_moments, /*max_exp_avg_sqs=*/{}, steps,
                      inputs.learning_rate, settings_.beta1, settings_.beta2, group.hyperparameters.weight_decay,
                      settings_.epsilon, /*amsgrad=*/false, /*maximize=*/false, to_optional(inputs.gradient_divisor),
                      /*found_inf=*/inputs.skipped);
  }

  AdamWSettings settings_;
};

const UpdateRuleEntry kAdamWRule{.kind = OptimizerKind::kAdamW,
                                 .first_moment_name = kFirstMoment,
                                 .can_update = [](const nn::Parameter& /*parameter*/) { return true; },
                                 .make = [](const OptimizerSettings& settings) -> std::unique_ptr<UpdateRule> {
                                   return std::make_unique<AdamW>(settings);
                                 }};

/// All rules. A new optimizer is an entry here.
constexpr std::array kUpdateRules{&kAdamWRule, &kMuonRule};

}  // namespace

const UpdateRuleEntry& get_update_rule(OptimizerKind kind) {
  const auto* const entry = std::ranges::find(kUpdateRules, kind, [](const auto* rule) { return rule->kind; });
  VLMTRAIN_CHECK(entry != kUpdateRules.end(), "optimizer {} has no update rule", get_optimizer_info(kind).name);
  return **entry;
}

UpdateRules::UpdateRules(const OptimizerSettings& settings) {
  for (const auto* const rule : kUpdateRules) rules_.emplace(rule->kind, rule->make(settings));
}

std::map<OptimizerKind, std::unique_ptr<UpdateScratch>> UpdateRules::allocate_scratch(
    const std::vector<UpdateGroup>& groups) const {
  std::map<OptimizerKind, std::unique_ptr<UpdateScratch>> scratch;
  for (const auto& [kind, rule] : rules_) {
    std::vector<const UpdateGroup*> rule_groups;
    for (const auto& group : groups) {
      if (group.hyperparameters.rule == kind) rule_groups.push_back(&group);
    }
    scratch[kind] = rule->allocate_scratch(rule_groups);
  }
  return scratch;
}

bool has_moments(const SavedOptimizerState& state, const std::string& parameter) {
  return std::ranges::any_of(kUpdateRules, [&](const UpdateRuleEntry* rule) {
    return state.contains(fmt::format("{}.{}", rule->first_moment_name, parameter));
  });
}

namespace {

/// A pattern of parameter names that records whether it has matched.
class CountedPattern {
 public:
  CountedPattern(std::string_view key, const std::string& text) : key_(key), pattern_(key, text) {}

  bool matches(const std::string& name) {
    const bool is_match = pattern_.matches(name);
    has_matched_ |= is_match;
    return is_match;
  }

  /// Throws UserError (kUsage) if it has matched no trained parameter. `examples` are names of trained
  /// parameters.
  void check_matched(const std::string& examples) const {
    if (has_matched_) return;
    throw usage_error(
        "{}: {} matches no trained parameter; use parts of their names by whole components, or a regular expression "
        "for the whole name; names are, for example, {}",
        key_, pattern_.text(), examples);
  }

  const std::string& text() const { return pattern_.text(); }

 private:
  std::string key_;
  nn::NamePattern pattern_;
  bool has_matched_ = false;
};

std::vector<CountedPattern> make_patterns(std::string_view key, const std::vector<std::string>& texts) {
  std::vector<CountedPattern> patterns;
  patterns.reserve(texts.size());
  for (const auto& text : texts) patterns.emplace_back(key, text);
  return patterns;
}

/// Returns whether any pattern matches. Tries all of them, so that each records its matches.
bool matches_any(std::vector<CountedPattern>& patterns, const std::string& name) {
  bool is_match = false;
  for (auto& pattern : patterns) is_match |= pattern.matches(name);
  return is_match;
}

/// Returns the first, the middle and the last name of the trained parameters.
std::string format_example_names(const nn::ParameterStore& store) {
  std::vector<std::string> names;
  for (const auto& parameter : store.all()) {
    if (parameter.tensor.requires_grad()) names.push_back(parameter.name);
  }
  if (names.size() < 3) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, {}, {}", names.front(), names[names.size() / 2], names.back());
}

/// The entries of training.parameter_groups.
class GroupMatcher {
 public:
  explicit GroupMatcher(const std::vector<ParameterGroupSettings>& settings) {
    for (const auto& group : settings)
      groups_.push_back(
          {.settings = &group, .patterns = make_patterns(keys::training::kParameterGroups, group.parameters)});
  }

  /// Returns the entry for a parameter; null if none matches. Throws UserError (kUsage) if several
  /// match.
  const ParameterGroupSettings* find(const nn::Parameter& parameter) {
    const Group* match = nullptr;
    for (auto& group : groups_) {
      if (!matches_any(group.patterns, parameter.name)) continue;
      if (match != nullptr) {
        throw usage_error("{}: {} matches entries {} and {}; each parameter may match one entry only",
                          keys::training::kParameterGroups, parameter.name, match - groups_.data() + 1,
                          &group - groups_.data() + 1);
      }
      group.has_usable_parameter |=
          !group.settings->optimizer || get_update_rule(*group.settings->optimizer).can_update(parameter);
      match = &group;
    }
    return match == nullptr ? nullptr : match->settings;
  }

  /// Throws UserError (kUsage) if a pattern has matched no parameter, or only parameters that the
  /// rule of its entry cannot update.
  void check_matched(const std::string& examples) const {
    for (const auto& group : groups_) {
      for (const auto& pattern : group.patterns) pattern.check_matched(examples);
      if (group.has_usable_parameter) continue;
      throw usage_error(
          "{}: {} cannot update any parameter that matches {}, since it needs weights of Linears; use adamw",
          keys::training::kParameterGroups, get_optimizer_info(*group.settings->optimizer).name,
          group.patterns.front().text());
    }
  }

 private:
  struct Group {
    const ParameterGroupSettings* settings;
    std::vector<CountedPattern> patterns;
    bool has_usable_parameter = false;
  };
  std::vector<Group> groups_;
};

bool is_lora_b(const nn::Parameter& parameter) {
  return parameter.is_adapter && parameter.name.ends_with(".lora_B.weight");
}

}  // namespace

std::vector<ParameterGroup> assign_parameter_groups(const nn::ParameterStore& store,
                                                    const OptimizerSettings& settings) {
  auto no_weight_decay = make_patterns(keys::training::kNoWeightDecay, settings.no_weight_decay);
  GroupMatcher group_matcher(settings.groups);
  const ParameterGroupSettings defaults;
  std::vector<ParameterGroup> groups;
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    const ParameterGroupSettings* const match = group_matcher.find(parameter);
    const ParameterGroupSettings& group = match == nullptr ? defaults : *match;
    const OptimizerKind kind = group.optimizer.value_or(settings.kind);
    const bool is_excluded = matches_any(no_weight_decay, parameter.name);
    const bool has_weight_decay = (parameter.tensor.dim() >= 2 || group.weight_decay) && !is_excluded;
    groups.push_back({.rule = get_update_rule(kind).can_update(parameter) ? kind : kDefaultOptimizer,
                      .component = parameter.component,
                      .has_weight_decay = has_weight_decay,
                      .weight_decay = has_weight_decay ? group.weight_decay.value_or(settings.weight_decay) : 0.0,
                      .learning_rate = group.learning_rate,
                      .learning_rate_factor = is_lora_b(parameter) ? settings.loraplus_lr_ratio : 1.0});
  }
  if (settings.allows_unmatched_patterns) return groups;
  const std::string examples = format_example_names(store);
  for (const auto& pattern : no_weight_decay) pattern.check_matched(examples);
  group_matcher.check_matched(examples);
  return groups;
}

GradientLayout::UndividedPredicate find_undivided_parameters(const nn::ParameterStore& store,
                                                             const OptimizerSettings& settings) {
  if (!settings.needs_whole_parameters()) return {};
  const auto groups = assign_parameter_groups(store, settings);
  std::set<std::string> names;
  size_t index = 0;
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    if (!get_optimizer_info(groups[index++].rule).is_elementwise) names.insert(parameter.name);
  }
  return [names = std::move(names)](const nn::Parameter& parameter) { return names.contains(parameter.name); };
}

}  // namespace vlmtrain::engine
