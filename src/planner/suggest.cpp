#include "planner/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "planner/job_change.h"
#include "planner/more_memory.h"
#include "planner/option_search.h"
#include "planner/sample_remedy.h"
#include "planner/trial.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

std::string size_words(int64_t bytes) {
  return fmt::format("{:.1f} GB", in_gigabytes(bytes));
}

/// A choice that a person fixed, back in the planner's hands.
struct Relaxation {
  std::string key;
  void (*free)(FixedChoices& fixed);
};

std::vector<Relaxation> relaxations(const FixedChoices& fixed) {
  std::vector<Relaxation> list;
  if (!fixed.recompute.is_auto()) {
    list.push_back({"memory.recompute", [](FixedChoices& free) { free.recompute = {}; }});
  }
  if (fixed.vision_tiles_per_pass) {
    list.push_back({"memory.vision_tiles_per_pass", [](FixedChoices& free) { free.vision_tiles_per_pass = {}; }});
  }
  if (fixed.loss_chunk_rows) {
    list.push_back({"memory.loss_chunk_rows", [](FixedChoices& free) { free.loss_chunk_rows = {}; }});
  }
  if (fixed.micro_batch_size) {
    list.push_back({"training.micro_batch_size", [](FixedChoices& free) { free.micro_batch_size = {}; }});
  }
  return list;
}

/// The plan where these choices are the planner's; nothing if it does not fit.
std::optional<Suggestion> freed(const std::vector<Relaxation>& relaxed, const PlanRequest& request, const Plan& plan,
                                Tried& tried) {
  FixedChoices fixed = request.fixed;
  for (const auto& relaxation : relaxed) relaxation.free(fixed);
  OptionSearch search(tried, request.workload, fixed, plan.limit.limit_bytes);
  const auto found = search.find();
  if (!found) return std::nullopt;
  Suggestion suggestion{.arguments = {},
                        .note = "changes no result beyond rounding",
                        .makes_it_fit = true,
                        .total_bytes = plan.total_bytes(*found)};
  for (const auto& relaxation : relaxed) {
    const bool is_size = relaxation.key == "training.micro_batch_size";
    suggestion.arguments.push_back(
        fmt::format("{}={}", relaxation.key, is_size ? std::to_string(found->choices.micro_batch_size) : "auto"));
  }
  return suggestion;
}

/// What keeps most of what a person fixed: one choice less, or if that does not do, ever more.
std::vector<Suggestion> less_fixed(const PlanRequest& request, const Plan& plan, Tried& tried) {
  std::vector<Suggestion> suggestions;
  std::vector<Relaxation> together;
  const auto all = relaxations(request.fixed);
  for (const auto& one : all) {
    if (auto suggestion = freed({one}, request, plan, tried)) suggestions.push_back(std::move(*suggestion));
  }
  for (const auto& one : all) {
    together.push_back(one);
    if (!suggestions.empty()) break;
    if (together.size() == 1) continue;
    if (auto suggestion = freed(together, request, plan, tried)) suggestions.push_back(std::move(*suggestion));
  }
  return suggestions;
}

void append(std::vector<Suggestion>& list, std::vector<Suggestion> more) {
  std::move(more.begin(), more.end(), std::back_inserter(list));
}

/// Of these, the ones that fit.
std::vector<Suggestion> fitting(const std::vector<JobChange>& changes, Trial& trial) {
  std::vector<Suggestion> suggestions;
  for (const auto& change : changes) {
    const auto bytes = trial.reserved_bytes(change.job, trial.request().workload);
    if (!trial.fits(bytes)) continue;
    suggestions.push_back({.arguments = change.arguments,
                           .note = change.meaning,
                           .makes_it_fit = true,
                           .total_bytes = *bytes + trial.plan().beside_bytes()});
  }
  return suggestions;
}

/// Lower limits of the samples with which a job fits that reserves so much without them.
std::vector<Suggestion> smaller_samples(const Job& job, int64_t without_bytes, Trial& trial) {
  std::vector<Suggestion> suggestions;
  for (const auto& limit : trial.request().sample_limits) {
    if (auto suggestion = lower(limit, job, without_bytes, trial)) suggestions.push_back(std::move(*suggestion));
  }
  return suggestions;
}

/// What no sample is part of.
int64_t standing_bytes(const Plan& plan) {
  const auto& bytes = plan.detail.peak.by_component;
  return bytes[static_cast<size_t>(memory::Component::kWeights)] +
         bytes[static_cast<size_t>(memory::Component::kOptimizer)];
}

/// Where no single change does: the smallest job, and that with smaller samples.
std::vector<Suggestion> several_changes(Trial& trial) {
  const auto smallest = smallest_job(trial.request());
  auto suggestions = fitting(smallest, trial);
  if (!suggestions.empty()) return suggestions;
  for (const auto& change : smallest) {
    const auto bytes = trial.reserved_bytes(change.job, trial.request().workload);
    if (!bytes) continue;
    for (auto& smaller : smaller_samples(change.job, *bytes, trial)) {
      smaller.arguments.insert(smaller.arguments.begin(), change.arguments.begin(), change.arguments.end());
      smaller.note = fmt::format("{}, with {}", change.meaning, smaller.note);
      suggestions.push_back(std::move(smaller));
    }
  }
  return suggestions;
}

}  // namespace

std::vector<Suggestion> suggest_faster(const Plan& plan, const Estimate& estimate) {
  std::vector<Suggestion> suggestions;
  const auto add = [&](std::string note) {
    suggestions.push_back({.arguments = {}, .note = std::move(note), .makes_it_fit = true});
  };
  const Choices& chosen = plan.chosen.choices;
  if (chosen.recompute.vision + chosen.recompute.language > 0) {
    const auto missing = estimate.reserved_bytes(chosen.micro_batch_size, {}) - plan.limit.limit_bytes;
    const double without = estimate.micro_batch_seconds(chosen.micro_batch_size, {});
    const double with = estimate.micro_batch_seconds(chosen.micro_batch_size, chosen.recompute);
    add(fmt::format("with {} more nothing would be recomputed: steps about {:.0f} % shorter",
                    size_words(std::max<int64_t>(missing, 0)), 100 * (1 - without / with)));
  }
  const int64_t spare = plan.limit.limit_bytes - plan.chosen.peaks.reserved_bytes;
  if (chosen.micro_batch_size == plan.workload.samples_per_rank()) {
    add(fmt::format("the whole share of the global batch is one micro-batch; {} stay free beside the margin",
                    size_words(spare)));
  }
  return suggestions;
}

std::vector<Suggestion> suggest_fitting(const PlanRequest& request, const Plan& plan, Tried& tried) {
  Trial trial(request, plan, tried);
  auto suggestions = less_fixed(request, plan, tried);
  append(suggestions, more_of_the_card(trial));
  auto changes = fitting(numeric_changes(request), trial);
  if (standing_bytes(plan) <= plan.limit.limit_bytes) {
    append(changes, smaller_samples(request.job, plan.chosen.peaks.reserved_bytes, trial));
  }
  append(changes, fitting(training_changes(request), trial));
  if (changes.empty()) changes = several_changes(trial);
  append(suggestions, std::move(changes));
  if (auto card = larger_card(trial)) suggestions.push_back(std::move(*card));
  for (auto& suggestion : suggestions) {
    suggestion.note = fmt::format("{}; {} are enough then", suggestion.note, size_words(suggestion.total_bytes));
  }
  if (suggestions.empty()) {
    suggestions.push_back(
        {.arguments = {},
         .note =
             "neither smaller samples nor LoRA on weights of 4 bits nor a larger card would do; take a smaller model",
         .makes_it_fit = false});
  }
  return suggestions;
}

}  // namespace vlmtrain::planner
