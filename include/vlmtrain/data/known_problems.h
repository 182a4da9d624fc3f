#pragma once

#include <cstdint>
#include <map>

#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/bad_samples.h"
#include "vlmtrain/data/ledger.h"

namespace vlmtrain::data {

/// Whether a run ends with the problem; else the sample is dropped.
inline bool stops_run(const SampleProblem& problem, BadSamplePolicy policy) {
  return policy == BadSamplePolicy::kFail && !problem.is_dropped;
}

/// Enters bad samples, by index, in the ledger of their data set: as failed where they stop a run, else as dropped.
/// `ids`: of the data set's samples, by index.
void record_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, BadSamplePolicy policy,
                     Ledger& ledger);

}  // namespace vlmtrain::data
