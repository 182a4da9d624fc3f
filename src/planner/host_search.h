#pragma once

#include <optional>
#include <vector>

#include "planner/host_rehearsal.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// A way to do a step on the CPU.
struct HostStep {
  Choices choices;
  int64_t tensor_bytes = 0;  ///< that live at once, at most, with the batch that needs most
  int64_t peak_bytes = 0;    ///< with what malloc holds free (HostRehearsal::step)
  size_t batch = 0;          ///< which of the candidates that is
};

/// The search of a plan for the CPU, for one job and one workload. One lives at a time.
class HostSearch {
 public:
  struct Settings {
    FixedChoices fixed;
    int64_t limit_bytes = 0;          ///< for tensors
    int64_t largest_micro_batch = 1;  ///< that is tried where none is fixed
  };

  /// `workload` must outlive it. What it takes is added to `effort`. Throws what building the model throws.
  HostSearch(Job job, const Workload& workload, Settings settings, PlanningEffort& effort);

  /// The first that fits in the order that make_host_plan names; nothing where none does.
  std::optional<HostStep> find();

  /// What needs least of all that is not fixed, or the first such step that fits.
  HostStep least();

  /// With the batch that needs most.
  HostStep rehearse(const Choices& choices);

  /// What makes its peak.
  RehearsalDetail detail_of(const HostStep& step);

 private:
  std::optional<HostStep> first_fitting(const models::RecomputeBlocks& recompute);
  std::optional<HostStep> find_recomputing();
  std::optional<HostStep> find_with_smaller_passes();
  Choices recomputing(int64_t blocks) const;
  Choices choices_at(int64_t size, const models::RecomputeBlocks& recompute) const;
  std::vector<int64_t> micro_batch_sizes() const;
  int64_t pixel_rows() const;
  int64_t all_blocks() const { return all_blocks_.vision + all_blocks_.language; }
  bool fits(const HostStep& step) const { return step.peak_bytes <= settings_.limit_bytes; }

  Job job_;
  const Workload& workload_;
  Settings settings_;
  PlanningEffort& effort_;
  std::optional<HostRehearsal> rehearsal_;
  std::vector<HostStep> rehearsed_;
  models::RecomputeBlocks all_blocks_;  // the model's
};

}  // namespace vlmtrain::planner
