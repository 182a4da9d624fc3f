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

/// The interface that evaluates changes of a plan that does not fit, on a GPU or a CPU.
class ChangeEvaluator {
 public:
  /// The request. All references must outlive the evaluator.
  struct Problem {
    const Job& job;
    const Workload& workload;
    const StepConstraints& constraints;
    const std::vector<SampleLimit>& sample_limits;
    const FlagSyntax& flags;
    bool has_bf16 = true;  ///< otherwise 16 bits are fp16
  };

  explicit ChangeEvaluator(const Problem& problem) : problem_(problem) {}
  virtual ~ChangeEvaluator() = default;
  ChangeEvaluator(const ChangeEvaluator&) = delete;
  ChangeEvaluator& operator=(const ChangeEvaluator&) = delete;

  const Problem& problem() const { return problem_; }

  /// Returns the least memory of the job with these samples within the constraints, or that of the
  /// first config that fits. Returns nullopt if it exceeds the memory of any device.
  virtual std::optional<int64_t> estimate_min_bytes(const Job& job, const Workload& workload,
                                                    const StepConstraints& constraints) = 0;

  struct RelaxedPlan {
    int64_t micro_batch_size = 0;
    int64_t total_bytes = 0;
  };
  /// Returns the plan of the request with other constraints, or nullopt if it does not fit.
  virtual std::optional<RelaxedPlan> replan(const StepConstraints& constraints) = 0;

  virtual int64_t limit_bytes() const = 0;               ///< of the dry-run memory
  virtual int64_t total_bytes(int64_t bytes) const = 0;  ///< with the memory outside the dry run
  /// Returns suggestions for more memory: a smaller margin or a higher limit, if settings keep the
  /// run from using what the device has.
  virtual std::vector<Suggestion> suggest_more_memory() const = 0;

  bool fits(std::optional<int64_t> bytes) const { return bytes && *bytes <= limit_bytes(); }

 private:
  Problem problem_;
};

/// A change of the settings with which the same model is trained on the same samples.
struct JobChange {
  std::vector<std::string> arguments;  ///< like Suggestion::arguments
  std::string description;
  Job job;
};

/// Returns the LoRA settings that a configuration would give the job. Frozen parts get no adapters.
nn::LoraSettings make_lora_settings(const Job& job, int64_t rank);

/// Returns whether a part is trained that supports adapters. The mask decoder does not.
bool can_have_adapters(const models::FrozenParts& frozen);

/// Returns changes that affect only rounding or the optimizer: precision, data type of optimizer
/// states, quantization of frozen weights.
std::vector<JobChange> list_numeric_changes(const ChangeEvaluator::Problem& problem);
/// Returns changes that train fewer parameters, but at least one part.
std::vector<JobChange> list_training_changes(const ChangeEvaluator::Problem& problem);
/// Returns the change to the least memory that still trains adapters in every part; empty if the
/// job has it already.
std::vector<JobChange> make_smallest_job(const ChangeEvaluator::Problem& problem);

/// Returns the lowest memory.limit_gb above `gigabytes` that satisfies `is_sufficient`, in steps of
/// 0.01 below 10 GB and of 0.1 above. Returns nullopt if it exceeds `max_gigabytes`.
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

/// Splits a command line at spaces.
inline std::vector<std::string> split_arguments(const std::string& text) {
  std::vector<std::string> arguments;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) arguments.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return arguments;
}

/// Does the same after replacing {} in `format` by `value`.
template <class Value>
std::vector<std::string> format_arguments(const std::string& format, const Value& value) {
  return split_arguments(fmt::format(fmt::runtime(format), value));
}

}  // namespace vlmtrain::planner
