#include "engine/optimizer/update_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/optimizer/adamw.h"
#include "engine/optimizer/muon.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::engine {

namespace {

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
