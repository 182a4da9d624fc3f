#pragma once

#include <filesystem>
#include <vector>

#include "app/plan_arguments.h"
#include "vlmtrain/planner/sample_limit.h"

namespace vlmtrain::app {

/// The samples that flags describe instead of a data set.
class DescribedSamples {
 public:
  /// `arguments` and `config` must outlive what it gives.
  DescribedSamples(const PlanArguments& arguments, const train::Config& config)
      : arguments_(arguments), config_(config) {}

  /// Throws UserError (kUsage) for numbers that no sample has.
  planner::Workload workload() const { return workload(arguments_, config_); }
  /// The keys and flags that make them smaller.
  std::vector<planner::SampleLimit> limits() const;

 private:
  static planner::Workload workload(const PlanArguments& arguments, const train::Config& config);

  const PlanArguments& arguments_;
  const train::Config& config_;
};

}  // namespace vlmtrain::app
