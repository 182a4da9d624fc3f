#include "planner/suggestions/suggestions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::planner {

namespace {

/// The removal of a constraint: its configuration key, and the function that removes it.
struct ConstraintRelaxation {
  std::string_view key;
  void (*relax)(StepConstraints& constraints);
};

/// Returns the removal of each constraint that is set.
std::vector<ConstraintRelaxation> list_relaxations(const StepConstraints& constraints) {
  std::vector<ConstraintRelaxation> list;
  if (!constraints.recompute.is_auto()) {
    list.push_back({keys::memory::kRecompute, [](StepConstraints& relaxed) { relaxed.recompute = {}; }});
  }
  if (constraints.vision_tiles_per_pass) {
    list.push_back(
        {keys::memory::kVisionTilesPerPass, [](StepConstraints& relaxed) { relaxed.vision_tiles_per_pass = {}; }});
  }
  if (constraints.loss_chunk_rows) {
    list.push_back({keys::memory::kLossChunkRows, [](StepConstraints& relaxed) { relaxed.loss_chunk_rows = {}; }});
  }
  if (constraints.micro_batch_size) {
    list.push_back({keys::training::kMicroBatchSize, [](StepConstraints& relaxed) { relaxed.micro_batch_size = {}; }});
  }
  return list;
}

/// Returns the suggestion to remove these constraints; nullopt if the plan does not fit without
/// them.
std::optional<Suggestion> suggest_combined_relaxation(const std::vector<ConstraintRelaxation>& relaxations,
                                                      ChangeEvaluator& evaluator) {
  StepConstraints constraints = evaluator.plan_inputs().constraints;
  for (const auto& relaxation : relaxations) relaxation.relax(constraints);
  const auto plan = evaluator.replan(constraints);
  if (!plan) return std::nullopt;
  Suggestion suggestion{.arguments = {},
                        .note = "changes no result beyond rounding",
                        .makes_plan_fit = true,
                        .total_bytes = plan->total_bytes};
  for (const auto& relaxation : relaxations) {
    const bool relaxes_micro_batch_size = relaxation.key == keys::training::kMicroBatchSize;
    suggestion.arguments.push_back(fmt::format(
        "{}={}", relaxation.key, relaxes_micro_batch_size ? std::to_string(plan->micro_batch_size) : "auto"));
  }
  return suggestion;
}

/// Returns all suggestions that remove a single constraint and make the plan fit. If there are
/// none, returns the suggestion that removes the first n constraints, for the smallest n that makes
/// the plan fit.
std::vector<Suggestion> suggest_relaxations(const std::vector<ConstraintRelaxation>& relaxations,
                                            ChangeEvaluator& evaluator) {
  std::vector<Suggestion> suggestions;
  std::vector<ConstraintRelaxation> combined_relaxations;
  for (const auto& relaxation : relaxations) {
    if (auto suggestion = suggest_combined_relaxation({relaxation}, evaluator))
      suggestions.push_back(std::move(*suggestion));
  }
  for (const auto& relaxation : relaxations) {
    combined_relaxations.push_back(relaxation);
    if (!suggestions.empty()) break;
    if (combined_relaxations.size() == 1) continue;
    if (auto suggestion = suggest_combined_relaxation(combined_relaxations, evaluator))
      suggestions.push_back(std::move(*suggestion));
  }
  return suggestions;
}

void append(std::vector<Suggestion>& list, std::vector<Suggestion> added) {
  std::move(added.begin(), added.end(), std::back_inserter(list));
}

/// Suggests other jobs and smaller samples within `constraints`.
class ChangeSuggester {
 public:
  ChangeSuggester(ChangeEvaluator& evaluator, const StepConstraints& constraints)
      : evaluator_(evaluator), constraints_(constraints) {}

  /// Returns the single changes that make the plan fit. `min_bytes` is the memory without changes.
  /// `can_smaller_samples_help` is false if smaller samples cannot make it fit.
  std::vector<Suggestion> suggest_single_changes(int64_t min_bytes, bool can_smaller_samples_help) {
    auto suggestions = suggest_fitting_jobs(list_same_parameter_changes(evaluator_.plan_inputs()));
    if (can_smaller_samples_help) append(suggestions, suggest_smaller_samples(evaluator_.plan_inputs().job, min_bytes));
    append(suggestions, suggest_fitting_jobs(list_fewer_parameter_changes(evaluator_.plan_inputs())));
    return suggestions;
  }

  /// Returns the smallest job if it fits, otherwise the smallest job with smaller samples. For
  /// plans that no single change makes fit.
  std::vector<Suggestion> suggest_combined_changes() {
    const auto smallest_job_changes = list_changes_to_smallest_job(evaluator_.plan_inputs());
    auto suggestions = suggest_fitting_jobs(smallest_job_changes);
    if (!suggestions.empty()) return suggestions;
    for (const auto& change : smallest_job_changes) {
      const auto bytes = evaluator_.measure_min_bytes(change.job, evaluator_.plan_inputs().workload, constraints_);
      if (!bytes) continue;
      for (auto& suggestion : suggest_smaller_samples(change.job, *bytes)) {
        suggestion.arguments.insert(suggestion.arguments.begin(), change.arguments.begin(), change.arguments.end());
        suggestion.note = fmt::format("{}, with {}", change.description, suggestion.note);
        suggestions.push_back(std::move(suggestion));
      }
    }
    return suggestions;
  }

 private:
  /// Returns the changes with which the job fits.
  std::vector<Suggestion> suggest_fitting_jobs(const std::vector<JobChange>& changes) {
    std::vector<Suggestion> suggestions;
    for (const auto& change : changes) {
      const auto bytes = evaluator_.measure_min_bytes(change.job, evaluator_.plan_inputs().workload, constraints_);
      if (!evaluator_.fits(bytes)) continue;
      suggestions.push_back({.arguments = change.arguments,
                             .note = change.description,
                             .makes_plan_fit = true,
                             .total_bytes = evaluator_.total_bytes(*bytes)});
    }
    return suggestions;
  }

  /// Returns lower sample limits with which a job fits that needs `unlimited_bytes` without them.
  std::vector<Suggestion> suggest_smaller_samples(const Job& job, int64_t unlimited_bytes) {
    std::vector<Suggestion> suggestions;
    for (const auto& limit : evaluator_.plan_inputs().sample_limits) {
      if (auto suggestion = suggest_lower_limit(limit, job, constraints_, unlimited_bytes, evaluator_)) {
        suggestions.push_back(std::move(*suggestion));
      }
    }
    return suggestions;
  }

  ChangeEvaluator& evaluator_;
  const StepConstraints& constraints_;
};

/// Returns the memory of weights and optimizer state, which does not depend on the samples.
int64_t compute_persistent_bytes(const DryRunDetail& detail) {
  const auto& bytes = detail.peak.bytes_by_component;
  return bytes[static_cast<size_t>(memory::Component::kWeights)] +
         bytes[static_cast<size_t>(memory::Component::kOptimizer)];
}

/// Adds the removal of constraints to each suggestion.
void prepend_relaxations(const std::vector<ConstraintRelaxation>& relaxations, std::vector<Suggestion>& suggestions) {
  std::vector<std::string> arguments;
  arguments.reserve(relaxations.size());
  for (const auto& relaxation : relaxations) arguments.push_back(fmt::format("{}=auto", relaxation.key));
  for (auto& suggestion : suggestions) {
    suggestion.arguments.insert(suggestion.arguments.begin(), arguments.begin(), arguments.end());
  }
}

}  // namespace

std::vector<Suggestion> make_suggestions(ChangeEvaluator& evaluator, int64_t min_bytes, const DryRunDetail& detail) {
  const auto& plan_inputs = evaluator.plan_inputs();
  const bool can_smaller_samples_help = compute_persistent_bytes(detail) <= evaluator.limit_bytes();
  const auto relaxations = list_relaxations(plan_inputs.constraints);
  auto suggestions = suggest_relaxations(relaxations, evaluator);
  // A change may help only without the constraints. Then both are suggested together.
  const bool can_relax_all = !relaxations.empty() && suggestions.empty();
  StepConstraints relaxed_constraints = plan_inputs.constraints;
  for (const auto& relaxation : relaxations) relaxation.relax(relaxed_constraints);

  append(suggestions, evaluator.suggest_more_memory());
  ChangeSuggester constrained_suggester(evaluator, plan_inputs.constraints);
  ChangeSuggester relaxed_suggester(evaluator, relaxed_constraints);
  auto changes = constrained_suggester.suggest_single_changes(min_bytes, can_smaller_samples_help);
  if (changes.empty() && can_relax_all) {
    const auto relaxed_min_bytes =
        evaluator.measure_min_bytes(plan_inputs.job, plan_inputs.workload, relaxed_constraints);
    changes = relaxed_suggester.suggest_single_changes(relaxed_min_bytes.value_or(min_bytes), can_smaller_samples_help);
    prepend_relaxations(relaxations, changes);
  }
  if (changes.empty()) changes = constrained_suggester.suggest_combined_changes();
  if (changes.empty() && can_relax_all) {
    changes = relaxed_suggester.suggest_combined_changes();
    prepend_relaxations(relaxations, changes);
  }
  append(suggestions, std::move(changes));
  return suggestions;
}

void append_required_memory(std::vector<Suggestion>& suggestions) {
  for (auto& suggestion : suggestions) {
    suggestion.note = fmt::format("{}; requires {:.1f} GB", suggestion.note, to_gigabytes(suggestion.total_bytes));
  }
}

namespace {

/// Maximum number of guesses per limit. Not tuned.
constexpr int kMaxLimitGuesses = 4;
/// The search ends when the interval between a fitting and a failing value is at most this fraction
/// of the failing value. Not tuned.
constexpr double kLimitTolerance = 0.04;
/// Safety factor for the linear interpolation. Memory is not linear in the limit, since the peak
/// may move to another point of the step. Not tuned.
constexpr double kInterpolationSafetyFactor = 0.97;
/// Samples that were not the largest may need more memory with the lower limit. Then the value is
/// multiplied by kLimitRetryFactor, at most this many times. Not tuned.
constexpr int kMaxLimitRetries = 3;
constexpr double kLimitRetryFactor = 0.85;

/// A value of a limit, and the least memory with this value.
struct LimitMeasurement {
  int64_t limit = 0;
  int64_t bytes = 0;
};

/// One call of suggest_lower_limit().
class SampleLimitSearch {
 public:
  SampleLimitSearch(const SampleLimit& limit, const Job& job, const StepConstraints& constraints,
                    ChangeEvaluator& evaluator)
      : sample_limit_(limit),
        job_(job),
        constraints_(constraints),
        evaluator_(evaluator),
        min_limit_(limit.find_min()) {}

  std::optional<Suggestion> find(int64_t unlimited_bytes) {
    if (sample_limit_.max_useful_value <= min_limit_) return std::nullopt;
    auto min_measurement = measure_limit(min_limit_, /*all_samples=*/false);
    if (!min_measurement || !evaluator_.fits(min_measurement->bytes)) return std::nullopt;
    LimitMeasurement fitting_measurement = *min_measurement;
    LimitMeasurement failing_measurement{sample_limit_.max_useful_value, unlimited_bytes};
    for (int attempt = 0; attempt < kMaxLimitGuesses; ++attempt) {
      const int64_t limit = interpolate_limit(fitting_measurement, failing_measurement);
      if (limit <= fitting_measurement.limit || limit >= failing_measurement.limit) break;
      const auto measurement = measure_limit(limit, /*all_samples=*/false);
      if (!measurement) break;
      (evaluator_.fits(measurement->bytes) ? fitting_measurement : failing_measurement) = *measurement;
      const auto distance = static_cast<double>(failing_measurement.limit - fitting_measurement.limit);
      if (distance <= kLimitTolerance * static_cast<double>(failing_measurement.limit)) break;
    }
    return verify_limit(fitting_measurement.limit);
  }

 private:
  int64_t round_limit(int64_t limit) const {
    return std::max(min_limit_, limit / sample_limit_.granularity * sample_limit_.granularity);
  }

  /// Returns the memory with this value. Returns nullopt if the value is not allowed, drops most
  /// samples, or exceeds the memory of any device.
  std::optional<LimitMeasurement> measure_limit(int64_t limit, bool all_samples) {
    auto limited_samples = sample_limit_.measure(limit, all_samples);
    if (!limited_samples || 2 * limited_samples->num_dropped > limited_samples->num_samples) return std::nullopt;
    num_dropped_samples_ = limited_samples->num_dropped;
    num_samples_ = limited_samples->num_samples;
    const auto bytes = evaluator_.measure_min_bytes(job_, limited_samples->workload, constraints_);
    if (!bytes) return std::nullopt;
    return LimitMeasurement{limit, *bytes};
  }

  /// Returns the value where the line through both measurements crosses the memory limit, at least
  /// a tenth of their distance away from both, so that the interval shrinks.
  int64_t interpolate_limit(const LimitMeasurement& fitting_measurement,
                            const LimitMeasurement& failing_measurement) const {
    const double distance = static_cast<double>(failing_measurement.limit - fitting_measurement.limit);
    const double extra_bytes = static_cast<double>(failing_measurement.bytes - fitting_measurement.bytes);
    const double headroom = static_cast<double>(evaluator_.limit_bytes() - fitting_measurement.bytes);
    const double fraction =
        extra_bytes > 0 ? std::clamp(kInterpolationSafetyFactor * headroom / extra_bytes, 0.1, 0.9) : 0.5;
    return round_limit(fitting_measurement.limit + static_cast<int64_t>(distance * fraction));
  }

  /// Returns the suggestion of `limit`, or of a slightly lower value, after measuring all samples.
  /// The search measured only the samples that were the largest before.
  std::optional<Suggestion> verify_limit(int64_t limit) {
    for (int attempt = 0; attempt < kMaxLimitRetries; ++attempt) {
      const auto measurement = measure_limit(limit, /*all_samples=*/true);
      if (!measurement) return std::nullopt;
      if (evaluator_.fits(measurement->bytes)) return make_suggestion(*measurement);
      if (limit == min_limit_) break;
      limit = round_limit(static_cast<int64_t>(kLimitRetryFactor * static_cast<double>(limit)));
    }
    return std::nullopt;
  }

  Suggestion make_suggestion(const LimitMeasurement& measurement) const {
    std::string note = sample_limit_.description;
    if (num_dropped_samples_ > 0)
      note += fmt::format(", which drops {} of {} samples", format_with_commas(num_dropped_samples_),
                          format_with_commas(num_samples_));
    return {.arguments = format_arguments(sample_limit_.argument_format, measurement.limit),
            .note = std::move(note),
            .makes_plan_fit = true,
            .total_bytes = evaluator_.total_bytes(measurement.bytes)};
  }

  const SampleLimit& sample_limit_;
  const Job& job_;
  const StepConstraints& constraints_;
  ChangeEvaluator& evaluator_;
  int64_t min_limit_;
  int64_t num_dropped_samples_ = 0;  // with the last measured value; so is num_samples_
  int64_t num_samples_ = 0;
};

}  // namespace

std::optional<Suggestion> suggest_lower_limit(const SampleLimit& limit, const Job& job,
                                              const StepConstraints& constraints, int64_t unlimited_bytes,
                                              ChangeEvaluator& evaluator) {
  return SampleLimitSearch(limit, job, constraints, evaluator).find(unlimited_bytes);
}

}  // namespace vlmtrain::planner
