#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// Interface that evaluates changes of a plan that does not fit. Not thread-safe.
class ChangeEvaluator {
 public:
  /// The parts of the planning request that suggestions depend on. All references must outlive the
  /// evaluator.
  struct PlanInputs {
    const Job& job;
    const Workload& workload;
    const StepConstraints& constraints;
    const std::vector<SampleLimit>& sample_limits;
    const FlagSyntax& flags;
    bool has_bf16 = true;  ///< the device supports bf16; otherwise suggestions propose fp16
    std::optional<memory::HostLinkSpeed> host_link = std::nullopt;  ///< nullopt on a host
    std::optional<int64_t> usable_host_bytes = std::nullopt;        ///< compute_usable_host_bytes()
  };

  explicit ChangeEvaluator(const PlanInputs& plan_inputs) : plan_inputs_(plan_inputs) {}
  virtual ~ChangeEvaluator() = default;
  ChangeEvaluator(const ChangeEvaluator&) = delete;
  ChangeEvaluator& operator=(const ChangeEvaluator&) = delete;

  const PlanInputs& plan_inputs() const { return plan_inputs_; }

  /// Dry-runs a job with the samples of `workload` and returns the least memory within the
  /// constraints, in the bytes of limit_bytes(). Stops at the first StepConfig that fits. Returns
  /// nullopt if the job exceeds the memory of any device or cannot be dry-run.
  virtual std::optional<int64_t> measure_min_bytes(const Job& job, const Workload& workload,
                                                   const StepConstraints& constraints) = 0;

  /// A plan with other constraints.
  struct RelaxedPlan {
    int64_t micro_batch_size = 0;
    int64_t total_bytes = 0;
  };
  /// Returns the plan of the request with other constraints, or nullopt if it does not fit.
  virtual std::optional<RelaxedPlan> replan(const StepConstraints& constraints) = 0;

  /// Returns the limit of the memory that dry runs measure (MemoryLimit::limit_bytes).
  virtual int64_t limit_bytes() const = 0;
  /// Returns dry-run memory plus memory that dry runs do not measure, such as the CUDA context.
  virtual int64_t total_bytes(int64_t bytes) const = 0;
  /// Returns suggestions that let the run use more of the device's memory, if that is enough: a
  /// smaller margin or a higher memory.limit_gb.
  virtual std::vector<Suggestion> suggest_more_memory() const = 0;

  /// Returns whether dry-run memory is within limit_bytes(); false for nullopt.
  bool fits(std::optional<int64_t> bytes) const { return bytes && *bytes <= limit_bytes(); }

 private:
  PlanInputs plan_inputs_;
};

/// A change of a job's settings, for the same model and samples.
struct JobChange {
  std::vector<std::string> arguments;  ///< Suggestion::arguments
  std::string description;             ///< the effect, such as "freezes the vision tower"
  Job job;                             ///< the changed job
};

/// Returns the LoRA settings that the job has after enabling LoRA of this rank. Frozen parts get no
/// adapters.
nn::LoraSettings make_lora_settings(const Job& job, int64_t rank);

/// Returns whether any trained part of the model supports adapters. The mask decoder does not.
bool can_use_lora(const models::FrozenParts& frozen_parts);

/// Returns the applicable changes that train the same parameters: sharding, 16-bit precision, data
/// type of the optimizer state, quantization of frozen weights.
std::vector<JobChange> list_same_parameter_changes(const ChangeEvaluator::PlanInputs& plan_inputs);
/// Returns the applicable changes that train fewer parameters, but at least one part of the model.
std::vector<JobChange> list_fewer_parameter_changes(const ChangeEvaluator::PlanInputs& plan_inputs);
/// Returns at most one change, which minimizes memory but still trains adapters in every part: LoRA
/// and NF4. Empty if the job has both already.
std::vector<JobChange> list_changes_to_smallest_job(const ChangeEvaluator::PlanInputs& plan_inputs);

/// Returns the lowest value of memory.limit_gb above `gigabytes` for which `is_sufficient(value)`
/// returns true. Tries multiples of 0.01 up to 10 GB and of 0.1 above. Returns nullopt if none up
/// to `max_gigabytes` is sufficient.
template <class IsSufficient>
std::optional<double> find_min_sufficient_limit(double gigabytes, double max_gigabytes,
                                                const IsSufficient& is_sufficient) {
  constexpr int64_t kHundredthsPerGigabyte = 100, kHundredthsPerTenth = 10,
                    kCoarseStepThreshold = 10 * kHundredthsPerGigabyte;
  for (auto hundredths = static_cast<int64_t>(gigabytes * kHundredthsPerGigabyte) + 1;; ++hundredths) {
    if (hundredths > kCoarseStepThreshold)
      hundredths = (hundredths + kHundredthsPerTenth - 1) / kHundredthsPerTenth * kHundredthsPerTenth;
    const double limit = static_cast<double>(hundredths) / kHundredthsPerGigabyte;
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

/// Replaces {} in `format` by `value`, and splits the result at spaces.
template <class Value>
std::vector<std::string> format_arguments(const std::string& format, const Value& value) {
  return split_arguments(fmt::format(fmt::runtime(format), value));
}

}  // namespace vlmtrain::planner
