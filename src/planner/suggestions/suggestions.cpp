#include "planner/suggestions/suggestions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::planner {

namespace {

/// A constraint that a suggestion removes.
struct Relaxation {
  std::string key;
  void (*relax)(StepConstraints& constraints);
};

std::vector<Relaxation> list_relaxations(const StepConstraints& constraints) {
  std::vector<Relaxation> list;
  if (!constraints.recompute.is_auto()) {
    list.push_back({"memory.recompute", [](StepConstraints& relaxed) { relaxed.recompute = {}; }});
  }
  if (constraints.vision_tiles_per_pass) {
    list.push_back(
        {"memory.vision_tiles_per_pass", [](StepConstraints& relaxed) { relaxed.vision_tiles_per_pass = {}; }});
  }
  if (constraints.loss_chunk_rows) {
    list.push_back({"memory.loss_chunk_rows", [](StepConstraints& relaxed) { relaxed.loss_chunk_rows = {}; }});
  }
  if (constraints.micro_batch_size) {
    list.push_back({"training.micro_batch_size", [](StepConstraints& relaxed) { relaxed.micro_batch_size = {}; }});
  }
  return list;
}

/// Returns the suggestion to remove these constraints; nullopt if the plan does not fit then.
std::optional<Suggestion> suggest_relaxation(const std::vector<Relaxation>& relaxations, ChangeEvaluator& evaluator) {
  StepConstraints constraints = evaluator.problem().constraints;
  for (const auto& relaxation : relaxations) relaxation.relax(constraints);
  const auto plan = evaluator.replan(constraints);
  if (!plan) return std::nullopt;
  Suggestion suggestion{.arguments = {},
                        .note = "changes no result beyond rounding",
                        .makes_it_fit = true,
                        .total_bytes = plan->total_bytes};
  for (const auto& relaxation : relaxations) {
    const bool is_micro_batch = relaxation.key == "training.micro_batch_size";
    suggestion.arguments.push_back(
        fmt::format("{}={}", relaxation.key, is_micro_batch ? std::to_string(plan->micro_batch_size) : "auto"));
  }
  return suggestion;
}

/// Prefers to keep constraints: removes single ones first, then more and more of them.
std::vector<Suggestion> suggest_relaxations(const std::vector<Relaxation>& relaxations, ChangeEvaluator& evaluator) {
  std::vector<Suggestion> suggestions;
  std::vector<Relaxation> combined;
  for (const auto& relaxation : relaxations) {
    if (auto suggestion = suggest_relaxation({relaxation}, evaluator)) suggestions.push_back(std::move(*suggestion));
  }
  for (const auto& relaxation : relaxations) {
    combined.push_back(relaxation);
    if (!suggestions.empty()) break;
    if (combined.size() == 1) continue;
    if (auto suggestion = suggest_relaxation(combined, evaluator)) suggestions.push_back(std::move(*suggestion));
  }
  return suggestions;
}

void append(std::vector<Suggestion>& list, std::vector<Suggestion> added) {
  std::move(added.begin(), added.end(), std::back_inserter(list));
}

/// Suggests other jobs and smaller samples, under constraints.
class ChangeSuggester {
 public:
  ChangeSuggester(ChangeEvaluator& evaluator, const StepConstraints& constraints)
      : evaluator_(evaluator), constraints_(constraints) {}

  /// `min_bytes` is the memory without changes. `can_samples_help`: memory that does not depend on
  /// samples fits.
  std::vector<Suggestion> suggest_single_changes(int64_t min_bytes, bool can_samples_help) {
    auto suggestions = suggest_fitting_jobs(list_numeric_changes(evaluator_.problem()));
    if (can_samples_help) append(suggestions, suggest_smaller_samples(evaluator_.problem().job, min_bytes));
    append(suggestions, suggest_fitting_jobs(list_training_changes(evaluator_.problem())));
    return suggestions;
  }

  /// If no single change helps: the smallest job, also with smaller samples.
  std::vector<Suggestion> suggest_combined_changes() {
    const auto smallest_jobs = make_smallest_job(evaluator_.problem());
    auto suggestions = suggest_fitting_jobs(smallest_jobs);
    if (!suggestions.empty()) return suggestions;
    for (const auto& change : smallest_jobs) {
      const auto bytes = evaluator_.estimate_min_bytes(change.job, evaluator_.problem().workload, constraints_);
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
      const auto bytes = evaluator_.estimate_min_bytes(change.job, evaluator_.problem().workload, constraints_);
      if (!evaluator_.fits(bytes)) continue;
      suggestions.push_back({.arguments = change.arguments,
                             .note = change.description,
                             .makes_it_fit = true,
                             .total_bytes = evaluator_.total_bytes(*bytes)});
    }
    return suggestions;
  }

  /// Returns lower sample limits with which a job fits that needs `unlimited_bytes` without them.
  std::vector<Suggestion> suggest_smaller_samples(const Job& job, int64_t unlimited_bytes) {
    std::vector<Suggestion> suggestions;
    for (const auto& limit : evaluator_.problem().sample_limits) {
      if (auto suggestion = suggest_lower_limit(limit, job, constraints_, unlimited_bytes, evaluator_)) {
        suggestions.push_back(std::move(*suggestion));
      }
    }
    return suggestions;
  }

  ChangeEvaluator& evaluator_;
  const StepConstraints& constraints_;
};

/// Memory that does not depend on the samples.
int64_t persistent_bytes(const DryRunDetail& detail) {
  const auto& bytes = detail.peak.by_component;
  return bytes[static_cast<size_t>(memory::Component::kWeights)] +
         bytes[static_cast<size_t>(memory::Component::kOptimizer)];
}

void prepend_arguments(const std::vector<Relaxation>& relaxations, std::vector<Suggestion>& suggestions) {
  std::vector<std::string> arguments;
  arguments.reserve(relaxations.size());
  for (const auto& relaxation : relaxations) arguments.push_back(relaxation.key + "=auto");
  for (auto& suggestion : suggestions) {
    suggestion.arguments.insert(suggestion.arguments.begin(), arguments.begin(), arguments.end());
  }
}

}  // namespace

std::vector<Suggestion> make_suggestions(ChangeEvaluator& evaluator, int64_t min_bytes, const DryRunDetail& detail) {
  const auto& problem = evaluator.problem();
  const bool can_samples_help = persistent_bytes(detail) <= evaluator.limit_bytes();
  const auto relaxations = list_relaxations(problem.constraints);
  auto suggestions = suggest_relaxations(relaxations, evaluator);
  // Constraints may prevent a change from helping, so that both are suggested together.
  const bool can_relax_all = !relaxations.empty() && suggestions.empty();
  StepConstraints unconstrained = problem.constraints;
  for (const auto& relaxation : relaxations) relaxation.relax(unconstrained);

  append(suggestions, evaluator.suggest_more_memory());
  ChangeSuggester constrained_suggester(evaluator, problem.constraints);
  ChangeSuggester relaxed_suggester(evaluator, unconstrained);
  auto changes = constrained_suggester.suggest_single_changes(min_bytes, can_samples_help);
  if (changes.empty() && can_relax_all) {
    const auto relaxed_min_bytes = evaluator.estimate_min_bytes(problem.job, problem.workload, unconstrained);
    changes = relaxed_suggester.suggest_single_changes(relaxed_min_bytes.value_or(min_bytes), can_samples_help);
    prepend_arguments(relaxations, changes);
  }
  if (changes.empty()) changes = constrained_suggester.suggest_combined_changes();
  if (changes.empty() && can_relax_all) {
    changes = relaxed_suggester.suggest_combined_changes();
    prepend_arguments(relaxations, changes);
  }
  append(suggestions, std::move(changes));
  return suggestions;
}

void append_required_bytes(std::vector<Suggestion>& suggestions) {
  for (auto& suggestion : suggestions) {
    suggestion.note = fmt::format("{}; requires {:.1f} GB", suggestion.note, to_gigabytes(suggestion.total_bytes));
  }
}

namespace {

/// Bound of the dry runs per limit.
constexpr int kMaxLimitGuesses = 4;
/// The search ends when the interval between a fitting and a failing value is this fraction of the
/// failing one.
constexpr double kLimitTolerance = 0.04;
/// Safety factor for the linear interpolation, since peaks at different points of a step are not
/// linear.
constexpr double kInterpolationMargin = 0.97;
/// If all samples need more than the previously largest ones, lower values are tried.
constexpr int kMaxRetries = 3;
constexpr double kRetryFactor = 0.85;

/// A value of a limit, and the memory with it.
struct LimitPoint {
  int64_t limit = 0;
  int64_t bytes = 0;
};

class LimitSearch {
 public:
  LimitSearch(const SampleLimit& limit, const Job& job, const StepConstraints& constraints, ChangeEvaluator& evaluator)
      : limit_(limit), job_(job), constraints_(constraints), evaluator_(evaluator), min_limit_(limit.find_min()) {}

  std::optional<Suggestion> find(int64_t unlimited_bytes) {
    if (limit_.current <= min_limit_) return std::nullopt;
    auto min_point = measure_limit(min_limit_, /*all_samples=*/false);
    if (!min_point || !evaluator_.fits(min_point->bytes)) return std::nullopt;
    LimitPoint fitting_point = *min_point;
    LimitPoint failing_point{limit_.current, unlimited_bytes};
    for (int attempt = 0; attempt < kMaxLimitGuesses; ++attempt) {
      const int64_t limit = interpolate(fitting_point, failing_point);
      if (limit <= fitting_point.limit || limit >= failing_point.limit) break;
      const auto point = measure_limit(limit, /*all_samples=*/false);
      if (!point) break;
      (evaluator_.fits(point->bytes) ? fitting_point : failing_point) = *point;
      const auto distance = static_cast<double>(failing_point.limit - fitting_point.limit);
      if (distance <= kLimitTolerance * static_cast<double>(failing_point.limit)) break;
    }
    return verify(fitting_point.limit);
  }

 private:
  int64_t round_limit(int64_t limit) const { return std::max(min_limit_, limit / limit_.multiple * limit_.multiple); }

  std::optional<LimitPoint> measure_limit(int64_t limit, bool all_samples) {
    auto limited_samples = limit_.measure(limit, all_samples);
    if (!limited_samples || 2 * limited_samples->num_dropped > limited_samples->num_samples) return std::nullopt;
    num_dropped_ = limited_samples->num_dropped;
    num_samples_ = limited_samples->num_samples;
    const auto bytes = evaluator_.estimate_min_bytes(job_, limited_samples->workload, constraints_);
    if (!bytes) return std::nullopt;
    return LimitPoint{limit, *bytes};
  }

  /// Returns the value where the line through both points crosses the limit, at least a tenth away
  /// from the ends.
  int64_t interpolate(const LimitPoint& fitting_point, const LimitPoint& failing_point) const {
    const double distance = static_cast<double>(failing_point.limit - fitting_point.limit);
    const double extra_bytes = static_cast<double>(failing_point.bytes - fitting_point.bytes);
    const double headroom = static_cast<double>(evaluator_.limit_bytes() - fitting_point.bytes);
    const double fraction = extra_bytes > 0 ? std::clamp(kInterpolationMargin * headroom / extra_bytes, 0.1, 0.9) : 0.5;
    return round_limit(fitting_point.limit + static_cast<int64_t>(distance * fraction));
  }

  /// All samples are measured, which may need more memory than the previously largest ones.
  std::optional<Suggestion> verify(int64_t limit) {
    for (int attempt = 0; attempt < kMaxRetries; ++attempt) {
      const auto point = measure_limit(limit, /*all_samples=*/true);
      if (!point) return std::nullopt;
      if (evaluator_.fits(point->bytes)) return make_suggestion(*point);
      if (limit == min_limit_) break;
      limit = round_limit(static_cast<int64_t>(kRetryFactor * static_cast<double>(limit)));
    }
    return std::nullopt;
  }

  Suggestion make_suggestion(const LimitPoint& point) const {
    std::string note = limit_.description;
    if (num_dropped_ > 0)
      note += fmt::format(", which drops {} of {} samples", with_commas(num_dropped_), with_commas(num_samples_));
    return {.arguments = format_arguments(limit_.argument_format, point.limit),
            .note = std::move(note),
            .makes_it_fit = true,
            .total_bytes = evaluator_.total_bytes(point.bytes)};
  }

  const SampleLimit& limit_;
  const Job& job_;
  const StepConstraints& constraints_;
  ChangeEvaluator& evaluator_;
  int64_t min_limit_;
  int64_t num_dropped_ = 0;  // with the last value that was measured
  int64_t num_samples_ = 0;
};

}  // namespace

std::optional<Suggestion> suggest_lower_limit(const SampleLimit& limit, const Job& job,
                                              const StepConstraints& constraints, int64_t unlimited_bytes,
                                              ChangeEvaluator& evaluator) {
  return LimitSearch(limit, job, constraints, evaluator).find(unlimited_bytes);
}

}  // namespace vlmtrain::planner
