#include "planner/remedies.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>

#include "planner/job_change.h"
#include "planner/sample_remedy.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

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
std::optional<Suggestion> freed(const std::vector<Relaxation>& relaxed, RemedyRehearsal& rehearsal) {
  FixedChoices fixed = rehearsal.asked().fixed;
  for (const auto& relaxation : relaxed) relaxation.free(fixed);
  const auto found = rehearsal.plan_with(fixed);
  if (!found) return std::nullopt;
  Suggestion suggestion{.arguments = {},
                        .note = "changes no result beyond rounding",
                        .makes_it_fit = true,
                        .total_bytes = found->total_bytes};
  for (const auto& relaxation : relaxed) {
    const bool is_size = relaxation.key == "training.micro_batch_size";
    suggestion.arguments.push_back(
        fmt::format("{}={}", relaxation.key, is_size ? std::to_string(found->micro_batch_size) : "auto"));
  }
  return suggestion;
}

/// What keeps most of what a person fixed: one choice less, or if that does not do, ever more.
std::vector<Suggestion> less_fixed(const std::vector<Relaxation>& all, RemedyRehearsal& rehearsal) {
  std::vector<Suggestion> suggestions;
  std::vector<Relaxation> together;
  for (const auto& one : all) {
    if (auto suggestion = freed({one}, rehearsal)) suggestions.push_back(std::move(*suggestion));
  }
  for (const auto& one : all) {
    together.push_back(one);
    if (!suggestions.empty()) break;
    if (together.size() == 1) continue;
    if (auto suggestion = freed(together, rehearsal)) suggestions.push_back(std::move(*suggestion));
  }
  return suggestions;
}

void append(std::vector<Suggestion>& list, std::vector<Suggestion> more) {
  std::move(more.begin(), more.end(), std::back_inserter(list));
}

/// Other jobs and other samples, with choices of which some may be fixed.
class Changes {
 public:
  Changes(RemedyRehearsal& rehearsal, const FixedChoices& fixed) : rehearsal_(rehearsal), fixed_(fixed) {}

  /// `least_bytes`: with nothing changed. `samples_may_do`: what no sample is part of fits.
  std::vector<Suggestion> single(int64_t least_bytes, bool samples_may_do) {
    auto suggestions = fitting(numeric_changes(rehearsal_.asked()));
    if (samples_may_do) append(suggestions, smaller_samples(rehearsal_.asked().job, least_bytes));
    append(suggestions, fitting(training_changes(rehearsal_.asked())));
    return suggestions;
  }

  /// Where no single change does: the smallest job, and that with smaller samples.
  std::vector<Suggestion> several() {
    const auto smallest = smallest_job(rehearsal_.asked());
    auto suggestions = fitting(smallest);
    if (!suggestions.empty()) return suggestions;
    for (const auto& change : smallest) {
      const auto bytes = rehearsal_.least_bytes(change.job, rehearsal_.asked().workload, fixed_);
      if (!bytes) continue;
      for (auto& smaller : smaller_samples(change.job, *bytes)) {
        smaller.arguments.insert(smaller.arguments.begin(), change.arguments.begin(), change.arguments.end());
        smaller.note = fmt::format("{}, with {}", change.meaning, smaller.note);
        suggestions.push_back(std::move(smaller));
      }
    }
    return suggestions;
  }

 private:
  /// Of these, the ones that fit.
  std::vector<Suggestion> fitting(const std::vector<JobChange>& changes) {
    std::vector<Suggestion> suggestions;
    for (const auto& change : changes) {
      const auto bytes = rehearsal_.least_bytes(change.job, rehearsal_.asked().workload, fixed_);
      if (!rehearsal_.fits(bytes)) continue;
      suggestions.push_back({.arguments = change.arguments,
                             .note = change.meaning,
                             .makes_it_fit = true,
                             .total_bytes = rehearsal_.total_bytes(*bytes)});
    }
    return suggestions;
  }

  /// Lower limits of the samples with which a job fits that takes so much without them.
  std::vector<Suggestion> smaller_samples(const Job& job, int64_t without_bytes) {
    std::vector<Suggestion> suggestions;
    for (const auto& limit : rehearsal_.asked().sample_limits) {
      if (auto suggestion = lower(limit, job, fixed_, without_bytes, rehearsal_)) {
        suggestions.push_back(std::move(*suggestion));
      }
    }
    return suggestions;
  }

  RemedyRehearsal& rehearsal_;
  const FixedChoices& fixed_;
};

/// What no sample is part of.
int64_t standing_bytes(const RehearsalDetail& detail) {
  const auto& bytes = detail.peak.by_component;
  return bytes[static_cast<size_t>(memory::Component::kWeights)] +
         bytes[static_cast<size_t>(memory::Component::kOptimizer)];
}

void put_in_front(const std::vector<Relaxation>& relaxed, std::vector<Suggestion>& suggestions) {
  std::vector<std::string> keys;
  keys.reserve(relaxed.size());
  for (const auto& relaxation : relaxed) keys.push_back(relaxation.key + "=auto");
  for (auto& suggestion : suggestions) {
    suggestion.arguments.insert(suggestion.arguments.begin(), keys.begin(), keys.end());
  }
}

}  // namespace

std::vector<Suggestion> remedies_of(RemedyRehearsal& rehearsal, int64_t least_bytes, const RehearsalDetail& detail) {
  const auto& asked = rehearsal.asked();
  const bool samples_may_do = standing_bytes(detail) <= rehearsal.limit_bytes();
  const auto all = relaxations(asked.fixed);
  auto suggestions = less_fixed(all, rehearsal);
  // What is fixed is in the way where a change needs it undone too.
  const bool may_undo_all = !all.empty() && suggestions.empty();
  FixedChoices nothing_fixed = asked.fixed;
  for (const auto& relaxation : all) relaxation.free(nothing_fixed);

  append(suggestions, rehearsal.more_memory());
  Changes as_fixed(rehearsal, asked.fixed);
  Changes with_all_undone(rehearsal, nothing_fixed);
  auto changes = as_fixed.single(least_bytes, samples_may_do);
  if (changes.empty() && may_undo_all) {
    const auto least = rehearsal.least_bytes(asked.job, asked.workload, nothing_fixed);
    changes = with_all_undone.single(least.value_or(least_bytes), samples_may_do);
    put_in_front(all, changes);
  }
  if (changes.empty()) changes = as_fixed.several();
  if (changes.empty() && may_undo_all) {
    changes = with_all_undone.several();
    put_in_front(all, changes);
  }
  append(suggestions, std::move(changes));
  return suggestions;
}

void say_what_is_enough(std::vector<Suggestion>& remedies) {
  for (auto& remedy : remedies) {
    remedy.note = fmt::format("{}; {:.1f} GB are enough then", remedy.note, in_gigabytes(remedy.total_bytes));
  }
}

}  // namespace vlmtrain::planner
