#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Rehearses whether changes of a plan that does not fit make it fit, on a card or on the host.
class ChangeEvaluator {
 public:
  /// What was asked for. All must outlive the rehearsal.
  struct Problem {
    const Job& job;
    const Workload& workload;
    const StepConstraints& constraints;
    const std::vector<SampleLimit>& sample_limits;
    const FlagSyntax& flags;
    bool has_bf16 = true;  ///< or else its 16 bits are fp16
  };

  explicit ChangeEvaluator(const Problem& problem) : problem_(problem) {}
  virtual ~ChangeEvaluator() = default;
  ChangeEvaluator(const ChangeEvaluator&) = delete;
  ChangeEvaluator& operator=(const ChangeEvaluator&) = delete;

  const Problem& problem() const { return problem_; }

  /// The least that the job takes with these samples, whatever is not fixed; it stops at the first choices that fit.
  /// Nothing if it is more than there is anywhere.
  virtual std::optional<int64_t> estimate_min_bytes(const Job& job, const Workload& workload,
                                                    const StepConstraints& constraints) = 0;

  struct RelaxedPlan {
    int64_t micro_batch_size = 0;
    int64_t total_bytes = 0;
  };
  /// The plan that is made of what was asked for where this is fixed instead; nothing if it does not fit either.
  virtual std::optional<RelaxedPlan> replan(const StepConstraints& constraints) = 0;

  virtual int64_t limit_bytes() const = 0;               ///< that what was rehearsed may take
  virtual int64_t total_bytes(int64_t bytes) const = 0;  ///< with what is taken beside it
  /// More memory for the plan as it is: a smaller margin or a higher limit, where a person keeps the run from taking
  /// what there is.
  virtual std::vector<Suggestion> suggest_more_memory() const = 0;

  bool fits(std::optional<int64_t> bytes) const { return bytes && *bytes <= limit_bytes(); }

 private:
  Problem problem_;
};

/// Another way to train the same model on the same samples.
struct JobChange {
  std::vector<std::string> arguments;  ///< as Suggestion::arguments
  std::string description;
  Job job;
};

/// Adapters as a configuration makes them: what is frozen gets none.
nn::LoraSettings make_lora_settings(const Job& job, int64_t rank);

/// Whether anything is trained that gets some: not where only what draws masks is.
bool can_have_adapters(const models::FrozenParts& frozen);

/// What changes numbers by rounding only or in the optimizer: the precision, the optimizer's states, the frozen
/// weights.
std::vector<JobChange> list_numeric_changes(const ChangeEvaluator::Problem& problem);
/// What trains fewer parameters. Never so few that nothing is left.
std::vector<JobChange> list_training_changes(const ChangeEvaluator::Problem& problem);
/// What takes least memory of all that still trains adapters in every part; nothing if the job is that already.
std::vector<JobChange> make_smallest_job(const ChangeEvaluator::Problem& problem);

/// The least memory.limit_gb above `gigabytes` that `is_sufficient` of, in steps of a hundredth up to 10 GB and of a
/// tenth from there on; nothing if that is above `max_gigabytes`.
template <class IsSufficient>
std::optional<double> find_min_limit(double gigabytes, double max_gigabytes, const IsSufficient& is_sufficient) {
  constexpr int64_t kHundredths = 100, kTenthsInHundredths = 10, kCoarseThreshold = 10 * kHundredths;
  for (auto hundredths = static_cast<int64_t>(gigabytes * kHundredths) + 1;; ++hundredths) {
    if (hundredths > kCoarseThreshold)
      hundredths = (hundredths + kTenthsInHundredths - 1) / kTenthsInHundredths * kTenthsInHundredths;
    const double limit = static_cast<double>(hundredths) / kHundredths;
    if (limit > max_gigabytes) return std::nullopt;
    if (is_sufficient(limit)) return limit;
  }
}

/// What is typed, as the words that a shell makes of it.
inline std::vector<std::string> split_arguments(const std::string& text) {
  std::vector<std::string> arguments;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) arguments.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return arguments;
}

/// The same of a form, with `value` in the place of {}.
template <class Value>
std::vector<std::string> format_arguments(const std::string& format, const Value& value) {
  return split_arguments(fmt::format(fmt::runtime(format), value));
}

}  // namespace vlmtrain::planner
