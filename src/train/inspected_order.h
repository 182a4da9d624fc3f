#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The samples that a run takes first, in its order: as many, without those that are in `problems`.
std::vector<int64_t> find_first_samples(const data::SampleOrder& order,
                                        const std::map<int64_t, data::SampleProblem>& problems, int64_t count);

/// Enters the run's steps and epochs, and of several lanes what comes of each. `ledger` knows the bad samples.
void add_order(const data::SampleOrder& order, const data::Ledger& ledger, const Config& config,
               report::Inspection& inspection);

}  // namespace vlmtrain::train
