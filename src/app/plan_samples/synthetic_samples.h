#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/arguments/arguments.h"
#include "app/plan_samples/sample_variants.h"
#include "vlmtrain/planner/sample_limit.h"

namespace vlmtrain::app {

/// The samples that flags describe instead of a data set: all alike, or a mix of several kinds.
class SyntheticSamples {
 public:
  /// `arguments` and `config` must outlive it and what it gives. Throws UserError (kUsage) for numbers that no sample
  /// has.
  SyntheticSamples(const PlanArguments& arguments, const train::Config& config)
      : arguments_(arguments), config_(config), variants_(make_sample_variants(arguments.samples, config)) {}

  /// What a run has to hold. Throws UserError (kUsage) for a sample that training would refuse (data.max_length,
  /// data.max_images_per_sample), with what would make it one that is taken. Where data.on_bad_sample=skip, kinds of a
  /// mix that are refused are left out.
  planner::Workload workload() const;
  /// The keys and flags that make them smaller.
  std::vector<planner::SampleLimit> limits() const;
  /// Once there is a workload: what else there is to know of the largest: kinds that are left out, frames that are not
  /// looked at, more tokens than the model has positions for.
  std::vector<std::string> remarks() const;

 private:
  const PlanArguments& arguments_;
  const train::Config& config_;
  std::vector<SampleVariant> variants_;
};

}  // namespace vlmtrain::app
