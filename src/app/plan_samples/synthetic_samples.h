#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/arguments/arguments.h"
#include "app/plan_samples/sample_variants.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::app {

/// The samples that the flags of `vlmtrain plan` describe in place of a data set: equal samples, or
/// a mix of several variants (--image-mix).
class SyntheticSamples {
 public:
  /// `arguments` and `config` must outlive the object and the results of its methods. Throws
  /// UserError (kUsage) for numbers that no sample can have.
  SyntheticSamples(const PlanArguments& arguments, const train::Config& config)
      : arguments_(arguments), config_(config), variants_(make_sample_variants(arguments.samples, config)) {}

  /// Returns the workload of a run. Throws UserError (kUsage) with suggestions if training would
  /// reject a sample (data.max_length, data.max_images_per_sample). With data.on_bad_sample=skip,
  /// rejected variants of a mix are dropped, unless all are rejected.
  planner::Workload build_workload() const;
  /// Returns the configuration keys and flags that make the samples smaller.
  std::vector<planner::SampleLimit> build_sample_limits() const;
  /// Returns warnings, one sentence each: dropped variants, shrunk images, and, for the largest
  /// sample, unused frames and more tokens than the model has positions for. REQUIRES:
  /// build_workload() has not thrown.
  std::vector<std::string> list_remarks() const;

 private:
  const PlanArguments& arguments_;
  const train::Config& config_;
  std::vector<SampleVariant> variants_;
};

}  // namespace vlmtrain::app
