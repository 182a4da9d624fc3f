#include "planner/card_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "planner/cost_learning.h"
#include "planner/option_search.h"
#include "vlmtrain/planner/drawn_steps.h"

namespace vlmtrain::planner {

namespace {

class CardSets final : public SetRehearsal {
 public:
  /// `rehearsed` must outlive it.
  CardSets(RehearsedOptions& rehearsed, const Choices& choices) : rehearsed_(rehearsed), choices_(choices) {}

  std::vector<int64_t> bytes_of(const std::vector<SampleSet>& sets) override {
    RehearsalRequest request{.choices = choices_, .steps = {}, .each_from_empty_cache = true};
    // The first step of a run makes the optimizer's states.
    request.steps.push_back(groups_of(sets.front()));
    request.cuts.push_back(engine::cut_in_order({std::ssize(sets.front())}));
    for (const SampleSet& set : sets) {
      SampleSet twice = set;
      twice.insert(twice.end(), set.begin(), set.end());
      request.steps.push_back(groups_of(twice));
      request.cuts.push_back(engine::cut_in_order({std::ssize(set), std::ssize(set)}));
    }
    const Outcome outcome = rehearsed_.run(request);
    std::vector<int64_t> bytes(sets.size(), kUnlimitedBytes);
    for (size_t i = 0; i < sets.size() && i + 1 < outcome.steps.size(); ++i) {
      bytes[i] = outcome.steps[i + 1].reserved_bytes;
    }
    return bytes;
  }

  Steps run(const std::vector<SampleSet>& steps, const std::vector<engine::Cut>& cuts) override {
    RehearsalRequest request{
        .choices = choices_, .steps = {}, .cuts = cuts, .with_costs = true, .with_step_seconds = true};
    for (const SampleSet& step : steps) request.steps.push_back(groups_of(step));
    Outcome outcome = rehearsed_.run(request);
    double passes = 0, seconds = 0;
    for (size_t i = 0; i < outcome.step_seconds.size(); ++i) {
      passes += static_cast<double>(cuts[i].micro_batches());
      seconds += outcome.step_seconds[i];
    }
    const auto waiting = [&](int64_t micro_batches) {
      return passes > 0 ? rehearsed_.communication(seconds / passes, micro_batches).waiting_seconds : 0;
    };
    for (size_t i = 0; i < outcome.step_seconds.size(); ++i) {
      outcome.step_seconds[i] += waiting(cuts[i].micro_batches());
    }
    const double optimizer = outcome.costs ? outcome.costs->optimizer.seconds : 0;
    return {outcome.peaks(), std::move(outcome.step_seconds), optimizer + waiting(/*micro_batches=*/0)};
  }

 private:
  RehearsedOptions& rehearsed_;
  Choices choices_;
};

bool is_for_the_planner(const Plan& plan) {
  if (plan.fixed.micro_batch_size || plan.workload.drawn.empty() || plan.workload.samples_per_rank() == 1) return false;
  const Choices& chosen = plan.chosen.choices;
  return plan.workload.packed || chosen.micro_batch_size < plan.workload.samples_per_rank() ||
         chosen.recompute != models::RecomputeBlocks{};
}

int64_t middle(int64_t one, int64_t other) {
  return (one + other + 1) / 2;
}

/// Recomputations worth a try, the fewest blocks first.
std::vector<models::RecomputeBlocks> recomputations(const Plan& plan, RehearsedOptions& rehearsed) {
  const Choices& chosen = plan.chosen.choices;
  std::vector<models::RecomputeBlocks> list;
  if (!plan.fixed.recompute.is_auto()) return {chosen.recompute};
  const auto add = [&list](const models::RecomputeBlocks& blocks) {
    if (std::ranges::find(list, blocks) == list.end()) list.push_back(blocks);
  };
  FixedChoices single = plan.fixed;
  single.micro_batch_size = 1;
  const auto least = OptionSearch(rehearsed, plan.workload, single, plan.limit.limit_bytes).find();
  const models::RecomputeBlocks few = least ? least->choices.recompute : chosen.recompute;
  const models::RecomputeBlocks all{.vision = plan.detail.vision_blocks, .language = plan.detail.language_blocks};
  add(few);
  add(chosen.recompute);
  add({.vision = middle(few.vision, all.vision), .language = middle(few.language, all.language)});
  add(all);
  std::ranges::stable_sort(list, {},
                           [](const models::RecomputeBlocks& blocks) { return blocks.vision + blocks.language; });
  return list;
}

/// Alternatives are by micro-batch, then by blocks.
void choose(Plan& plan, const Option& option) {
  plan.chosen = option;
  const auto is_chosen = [&](const Option& other) { return other.choices == option.choices; };
  if (std::ranges::any_of(plan.alternatives, is_chosen)) return;
  const auto place = std::ranges::find_if(plan.alternatives, [&](const Option& other) {
    const Choices& theirs = other.choices;
    const Choices& ours = option.choices;
    return std::tuple(theirs.micro_batch_size, theirs.recompute.vision + theirs.recompute.language) >
           std::tuple(ours.micro_batch_size, ours.recompute.vision + ours.recompute.language);
  });
  plan.alternatives.insert(place, option);
}

}  // namespace

void plan_cut(Plan& plan, RehearsedOptions& rehearsed, const Estimate& estimate) {
  if (!is_for_the_planner(plan)) return;
  const CutQuestion question{.drawn = drawn_steps(plan.workload),
                             .largest = worst_steps(plan.workload),
                             .like = {.vision_tiles_per_pass = plan.chosen.choices.vision_tiles_per_pass,
                                      .loss_chunk_rows = plan.chosen.choices.loss_chunk_rows,
                                      .limit_bytes = plan.limit.limit_bytes}};
  const auto samples = static_cast<double>(plan.workload.samples_per_rank());
  models::RecomputeBlocks best = plan.chosen.choices.recompute;
  for (const auto& blocks : recomputations(plan, rehearsed)) {
    const bool is_slower_in_one_pass = plan.cut && estimate.step_seconds(1, samples, blocks) >=
                                                       estimate.step_seconds(plan.cut->passes_per_step, samples, best);
    if (is_slower_in_one_pass) continue;
    Choices choices = plan.chosen.choices;
    choices.recompute = blocks;
    CardSets sets(rehearsed, choices);
    const CutPlan cut = learn_cut(sets, question);
    if (plan.cut && cut.samples_per_second <= plan.cut->samples_per_second) continue;
    plan.cut = cut;
    best = blocks;
    if (plan.cut->most_passes == 1) break;  // what recomputing more makes room for is there already
  }
  if (best != plan.chosen.choices.recompute) {
    FixedChoices fixed = plan.fixed;
    fixed.recompute = RecomputeOption::of(best);
    OptionSearch search(rehearsed, plan.workload, fixed, plan.limit.limit_bytes);
    if (const auto option = search.find()) {
      choose(plan, *option);
    } else {
      plan.cut.reset();
    }
  }
}

}  // namespace vlmtrain::planner
