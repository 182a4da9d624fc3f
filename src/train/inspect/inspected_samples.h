#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/limit.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The samples that a run takes first, in its order: as many, without those that are in `problems`.
std::vector<int64_t> find_first_samples(const data::SampleOrder& order,
                                        const std::map<int64_t, data::SampleProblem>& problems, int64_t count);

/// Enters the run's steps and epochs, and of several lanes what comes of each. `ledger` knows the bad samples.
void add_order(const data::SampleOrder& order, const data::Ledger& ledger, const Config& config,
               report::Inspection& inspection);

/// The samples that may need most memory: that of most pixels, that of most label tokens, and those of most tokens up
/// to `count` in all; the longest first. Of several with the same shape the first.
std::vector<report::LargeSample> find_largest_samples(const data::SampleIndex& sample_index, int64_t count);

/// Plans the run for the card and rehearses a step of each of the largest samples alone, as the plan has it: enters
/// what each takes, the most first. `model`: as the user named it.
report::PredictionTarget predict_memory(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                        const Config& config, const std::string& model,
                                        const planner::TargetGpu& target, std::vector<report::LargeSample>& largest);

/// The sample as a run would train on it; one that cannot be made says why.
report::SamplePreview render_sample(const io::Records& records, const models::Processor& processor, int64_t index);

}  // namespace vlmtrain::train
