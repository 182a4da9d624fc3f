#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/target_gpu.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns the first samples in a run's order, without those in `problems`.
std::vector<int64_t> find_first_samples(const data::SampleOrder& order,
                                        const std::map<int64_t, data::SampleProblem>& problems, int64_t count);

/// Adds the run's steps and epochs, and those of each source. `ledger` has the bad samples.
void add_order(const data::SampleOrder& order, const data::Ledger& ledger, const Config& config,
               report::Inspection& inspection);

/// Returns the samples that may need the most memory, the longest first: those with the most
/// pixels, the most label tokens and, up to `count` in all, the most tokens. Only the first
/// of several samples with one shape counts.
std::vector<report::LargeSample> find_largest_samples(const data::SampleIndex& sample_index, int64_t count);

/// Plans the run for a GPU and dry-runs a step of each of the largest samples alone. Adds the
/// memory of each, the largest first. `model`: as the user named it.
report::PredictionTarget predict_memory(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                        const Config& config, const std::string& model,
                                        const planner::TargetGpu& target, std::vector<report::LargeSample>& largest);

/// Returns the sample as a run would train on it, or the reason why it cannot be used.
report::SamplePreview render_sample(const io::Records& records, const models::Processor& processor, int64_t index);

}  // namespace vlmtrain::train
