#include "vlmtrain/planner/search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "planner/card_cut.h"
#include "planner/option_search.h"
#include "planner/suggest.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/planner/drawn_steps.h"

namespace vlmtrain::planner {

namespace {

void check(const Job& job, const TargetCard& card, const Workload& workload, const FixedChoices& fixed) {
  if (!computes_in(*card.gpu, job.precision)) {
    throw usage_error("{} does not compute in {}; choose training.precision=fp32 or fp16, or another card",
                      card.gpu->device_name, engine::name_of(job.precision));
  }
  if (workload.global_batch_size % workload.world_size != 0) {
    throw usage_error(
        "the global batch of {} {} cannot be shared equally by {} ranks; it is kept exactly, so choose a multiple of "
        "the "
        "ranks",
        workload.global_batch_size, workload.packed ? "packs" : "samples", workload.world_size);
  }
  const int64_t share = workload.samples_per_rank();
  if (fixed.micro_batch_size && share % *fixed.micro_batch_size != 0) {
    throw usage_error(
        "a micro-batch of {} does not divide the {} samples that a rank has of the global batch of {}; choose one of "
        "{}, "
        "or auto",
        *fixed.micro_batch_size, share, workload.global_batch_size, fmt::join(divisors(share), ", "));
  }
}

/// The batch that needs most for its first sample; the search begins with it.
const SampleBatch& heaviest(RehearsedOptions& rehearsed, const std::vector<SampleBatch>& candidates,
                            const Choices& choices) {
  size_t heaviest = 0;
  int64_t most = 0;
  for (size_t i = 0; candidates.size() > 1 && i < candidates.size(); ++i) {
    if (i + 1 < candidates.size()) rehearsed.expect_probe(choices, candidates[i + 1]);
    const int64_t bytes = rehearsed.probe(choices, candidates[i]).peaks().reserved_bytes;
    if (bytes > most) heaviest = i;
    most = std::max(most, bytes);
  }
  return candidates[heaviest];
}

struct Overlooked {
  const SampleBatch* batch = nullptr;
  int64_t reserved_bytes = 0;
};

/// The batch that needs most with a plan that was found without it, if that is more than the plan says.
Overlooked find_overlooked(RehearsedOptions& rehearsed, const Workload& workload, const Option& chosen) {
  Overlooked overlooked{.reserved_bytes = chosen.peaks.reserved_bytes};
  for (const auto& candidate : workload.candidates) {
    if (candidate.shapes == rehearsed.worst().shapes) continue;
    const int64_t bytes = rehearsed.reserved_bytes(chosen.choices, candidate);
    if (bytes > overlooked.reserved_bytes) overlooked = {&candidate, bytes};
  }
  return overlooked;
}

/// The chosen plan's own numbers are those of a batch that needs more than the one that it was found with.
void restate(Plan& plan, RehearsedOptions& rehearsed, const SampleBatch& worse) {
  rehearsed.must_hold(worse);
  plan.chosen = rehearsed.rehearse(plan.chosen.choices);
  for (auto& option : plan.alternatives) {
    if (option.choices == plan.chosen.choices) option = plan.chosen;
  }
}

/// Each rank's largest part of a drawn step, rehearsed by itself.
std::vector<RankStep> rehearse_ranks(const Plan& plan, RehearsedOptions& rehearsed) {
  constexpr size_t kMostRanks = 64;
  constexpr int64_t kMostPasses = 400;
  auto parts = largest_parts(plan.workload);
  std::ranges::stable_sort(parts, std::greater{}, &DrawnPart::tokens);
  if (parts.size() > kMostRanks) parts.resize(kMostRanks);
  Choices choices = plan.chosen.choices;
  if (plan.cut) choices.costs = plan.cut->table;
  RehearsalRequest request{.choices = choices, .steps = {}, .each_from_empty_cache = true};
  const auto add = [&](const DrawnPart& part) {
    request.steps.push_back(groups_of(part.samples));
    request.cuts.push_back(layout_of(choices, part.samples).cut);
  };
  if (parts.empty()) return {};
  add(parts.front());  // the first step makes the optimizer's states
  int64_t passes = 0;
  for (const auto& part : parts) {
    if (passes > kMostPasses) break;
    add(part);
    passes += request.cuts.back().micro_batches();
  }
  const Outcome outcome = rehearsed.run(request);
  std::vector<RankStep> steps;
  for (size_t i = 1; i < outcome.steps.size(); ++i) {
    steps.push_back({.rank = parts[i - 1].rank, .drawn_step = parts[i - 1].step, .peaks = outcome.steps[i]});
  }
  std::ranges::sort(steps, {}, &RankStep::rank);
  return steps;
}

Plan plan_as_asked(const PlanRequest& asked) {
  const auto start = std::chrono::steady_clock::now();
  PlanRequest request = asked;
  keep_to(request.fixed, request.workload);
  request.job.world_size = request.workload.world_size;
  check(request.job, request.card, request.workload, request.fixed);
  Plan plan;
  plan.model = request.model;
  plan.job = request.job;
  plan.mode = request.mode;
  plan.workload = request.workload;
  plan.card = request.card;
  plan.fixed = request.fixed;
  plan.limit = limit_of(request.card, request.mode, request.limit_gigabytes, request.workload.world_size);

  RehearsedOptions rehearsed(request.job, request.card, request.workload, plan.limit.limit_bytes);
  rehearsed.must_hold(heaviest(rehearsed, request.workload.candidates,
                               {.recompute = {}, .expandable_segments = request.fixed.expandable_segments}));
  std::optional<OptionSearch> search;
  for (size_t held = 1;; ++held) {
    search.emplace(rehearsed, request.workload, request.fixed, plan.limit.limit_bytes);
    const auto found = search->find();
    plan.fits = found.has_value();
    plan.chosen = found ? *found : search->least();
    plan.alternatives = search->alternatives();
    if (held == request.workload.candidates.size()) break;
    const Overlooked overlooked = find_overlooked(rehearsed, request.workload, plan.chosen);
    if (overlooked.batch == nullptr) break;
    if (plan.fits && overlooked.reserved_bytes <= plan.limit.limit_bytes) {
      restate(plan, rehearsed, *overlooked.batch);
      break;
    }
    rehearsed.must_hold(*overlooked.batch);
  }
  if (plan.fits && request.with_cut) {
    plan.detail = *rehearsed.outcome_of(plan.chosen.choices, /*with_timeline=*/false).detail;
    plan_cut(plan, rehearsed, search->estimate());
  }
  const Outcome& outcome = rehearsed.outcome_of(plan.chosen.choices, request.with_timeline);
  plan.worst = rehearsed.batch_of(plan.chosen.choices);
  plan.detail = *outcome.detail;
  plan.costs = *outcome.costs;
  if (!request.workload.average.empty()) {
    plan.average = rehearsed.average_step(plan.chosen.choices, request.workload.average);
  }
  if (request.workload.world_size > 1) {
    plan.communication = rehearsed.communication(plan.chosen.choices);
    if (plan.fits) plan.rank_steps = rehearse_ranks(plan, rehearsed);
  }
  if (plan.fits) {
    plan.suggestions = suggest_faster(plan, search->estimate());
  } else if (request.with_remedies) {
    plan.suggestions = suggest_fitting(request, plan, rehearsed);
  }
  plan.effort = rehearsed.effort();
  plan.effort.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

bool is_better(const Plan& plan, const Plan& other) {
  if (plan.fits != other.fits) return plan.fits;
  if (!plan.fits) return plan.total_bytes() < other.total_bytes();
  return plan.chosen.step_seconds < other.chosen.step_seconds;
}

/// Blocks that are brought together again and again take longer than those that are there: it pays where nothing fits
/// else, where activations are recomputed for want of memory, or where less goes over the network then.
bool may_gain_by_shared_blocks(const Plan& plan) {
  return !plan.fits || plan.workload.nodes > 1 || !(plan.chosen.choices.recompute == models::RecomputeBlocks{});
}

}  // namespace

Plan make_plan(const PlanRequest& asked) {
  if (!asked.chooses_sharding || asked.workload.world_size == 1) return plan_as_asked(asked);
  PlanRequest request = asked;
  request.job.world_size = request.workload.world_size;
  request.with_remedies = false;  // of what is not chosen, nobody asks
  std::optional<Plan> best;
  PlanningEffort effort;
  const auto plan_with = [&](engine::Sharding sharding) {
    request.job.sharding = sharding;
    Plan plan = plan_as_asked(request);
    effort.seconds += plan.effort.seconds;
    effort.rehearsals += plan.effort.rehearsals;
    effort.rehearsal_seconds += plan.effort.rehearsal_seconds;
    return plan;
  };
  for (const auto sharding : possible_shardings(request.job)) {
    if (engine::shards_blocks(sharding) && !may_gain_by_shared_blocks(*best)) continue;
    Plan plan = plan_with(sharding);
    if (!best || is_better(plan, *best)) best = std::move(plan);
  }
  if (!best->fits && asked.with_remedies) {
    request.with_remedies = true;
    best = plan_with(best->job.sharding);
  }
  best->effort = effort;
  return std::move(*best);
}

}  // namespace vlmtrain::planner
