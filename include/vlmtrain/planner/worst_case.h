#pragma once

#include <vector>

#include "vlmtrain/data/outlines.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The global batches that can be the worst that the samples of known shape make: the largest by tokens, by tiles and
/// by label tokens, each once. Of equal samples the first of the data set comes first. REQUIRES: a known shape.
std::vector<SampleBatch> find_worst_batches(const data::SampleIndex& samples, int64_t global_batch_size);

}  // namespace vlmtrain::planner
