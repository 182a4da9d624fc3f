#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/arguments/arguments.h"
#include "app/plan_samples/sample_variants.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::app {

/// The samples that flags describe in place of a data set: equal ones, or a mix of variants.
class SyntheticSamples {
 public:
  /// `arguments` and `config` must outlive the object and its results. Throws UserError (kUsage)
  /// for numbers that no sample can have.
  SyntheticSamples(const PlanArguments& arguments, const train::Config& config)
      : arguments_(arguments), config_(config), variants_(make_sample_variants(arguments.samples, config)) {}

  /// Returns the workload of a run. Throws UserError (kUsage), with advice, for a sample that
  /// training would reject (data.max_length, data.max_images_per_sample). With
  /// data.on_bad_sample=skip rejected variants of a mix are left out.
  planner::Workload workload() const;
  /// Returns the keys and flags that make the samples smaller.
  std::vector<planner::SampleLimit> limits() const;
  /// Returns remarks on the largest sample: rejected variants, unused frames, more tokens than the
  /// model has positions for. REQUIRES: workload() was called.
  std::vector<std::string> remarks() const;

 private:
  const PlanArguments& arguments_;
  const train::Config& config_;
  std::vector<SampleVariant> variants_;
};

}  // namespace vlmtrain::app
