#pragma once

#include <string>
#include <vector>

#include "app/settings/arguments.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// The samples that the flags of `vlmtrain plan` describe in place of a data set: equal samples, or
/// a mix of several variants (--image-mix).
struct SyntheticSamples {
  planner::Workload workload;
  std::vector<planner::SampleLimit> limits;  ///< the configuration keys and flags that make the samples smaller
  /// Warnings, one sentence each: dropped variants, shrunk images, and, for the largest sample,
  /// unused frames and more tokens than the model has positions for.
  std::vector<std::string> remarks;
};

/// Returns the samples of a run. With data.on_bad_sample=skip, rejected variants of a mix are dropped,
/// unless all are rejected. Throws UserError (kUsage) for numbers that no sample can have, and with
/// suggestions if training would reject a sample (data.max_length, data.max_images_per_sample).
SyntheticSamples make_synthetic_samples(const PlanArguments& arguments, const train::Config& config);

}  // namespace vlmtrain::app
