#include "engine/optimizer/update_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/optimizer/adamw.h"
#include "engine/optimizer/muon.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/optimizer/optimizer.h"

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

}  // namespace vlmtrain::engine
