#pragma once

#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// A sample of a data set, by its sizes.
struct MeasuredSample {
  std::string id;
  data::SampleShape shape;
};

/// The global batches that can be the worst that `samples` make: the largest by tokens, by tiles and by label tokens,
/// each once. REQUIRES: samples are not empty.
std::vector<SampleBatch> worst_batches(std::vector<MeasuredSample> samples, int64_t global_batch_size);

}  // namespace vlmtrain::planner
