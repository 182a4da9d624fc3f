#include "planner/sample_remedy.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/arguments.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::planner {

namespace {

constexpr int kMaxLimitGuesses = 4;
/// Share of the way between a number that fits and one that does not at which the search ends.
constexpr double kLimitTolerance = 0.04;
/// Below the number that a straight line says, since what it passes through are peaks of changing places.
constexpr double kInterpolationMargin = 0.97;
constexpr int kMaxRetries = 3;
constexpr double kRetryFactor = 0.85;

/// A number of a limit and what is taken with it.
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
    auto min_point = measure_limit(min_limit_, /*all=*/false);
    if (!min_point || !evaluator_.fits(min_point->bytes)) return std::nullopt;
    LimitPoint fitting_point = *min_point;
    LimitPoint failing_point{limit_.current, unlimited_bytes};
    for (int attempt = 0; attempt < kMaxLimitGuesses; ++attempt) {
      const int64_t limit = interpolate(fitting_point, failing_point);
      if (limit <= fitting_point.limit || limit >= failing_point.limit) break;
      const auto point = measure_limit(limit, /*all=*/false);
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

  /// Where a straight line meets the limit; at least a tenth of the way.
  int64_t interpolate(const LimitPoint& fitting_point, const LimitPoint& failing_point) const {
    const double distance = static_cast<double>(failing_point.limit - fitting_point.limit);
    const double extra_bytes = static_cast<double>(failing_point.bytes - fitting_point.bytes);
    const double headroom = static_cast<double>(evaluator_.limit_bytes() - fitting_point.bytes);
    const double fraction = extra_bytes > 0 ? std::clamp(kInterpolationMargin * headroom / extra_bytes, 0.1, 0.9) : 0.5;
    return round_limit(fitting_point.limit + static_cast<int64_t>(distance * fraction));
  }

  /// With all samples measured, which may need a little more than the largest of before.
  std::optional<Suggestion> verify(int64_t limit) {
    for (int attempt = 0; attempt < kMaxRetries; ++attempt) {
      const auto point = measure_limit(limit, /*all=*/true);
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
      note += fmt::format(", which leaves out {} of {} samples", with_commas(num_dropped_), with_commas(num_samples_));
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
  int64_t num_dropped_ = 0;  // with the number that was tried last
  int64_t num_samples_ = 0;
};

}  // namespace

std::optional<Suggestion> suggest_lower_limit(const SampleLimit& limit, const Job& job,
                                              const StepConstraints& constraints, int64_t unlimited_bytes,
                                              ChangeEvaluator& evaluator) {
  return LimitSearch(limit, job, constraints, evaluator).find(unlimited_bytes);
}

}  // namespace vlmtrain::planner
