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
#include "vlmtrain/planner/target.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns the indices of the first `count` samples that a run draws, without repetitions and
/// without samples in `problems`. Returns fewer if most samples are bad.
std::vector<int64_t> find_first_sample_indices(const data::SampleOrder& order,
                                               const std::map<int64_t, data::SampleProblem>& problems, int64_t count);

/// Sets the number of steps and epochs of a run in `inspection`. Adds an entry with share and
/// epochs for each source if there are several. `ledger` marks bad samples as dropped or failed.
void add_steps_and_epochs(const data::SampleOrder& order, const data::Ledger& ledger, const Config& config,
                          report::Inspection& inspection);

/// Returns the samples that may need the most memory, sorted by descending number of tokens: the
/// sample with the most pixels, the sample with the most label tokens, and those with the most
/// tokens, up to `count` in total. Of several samples with the same shape it returns only the
/// first.
std::vector<report::LargeSample> find_largest_samples(const data::SampleIndex& sample_index, int64_t count);

/// Plans the run for the GPU `target`, and dry-runs a step for each sample of `largest` alone. Sets
/// their predicted_bytes, and sorts them by it in descending order. `model`: name of the model in
/// the result, as the user gave it. Throws the errors of planner::make_plan() and
/// planner::DryRunProcess.
report::MemoryPredictionTarget predict_memory(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                              const Config& config, const std::string& model,
                                              const planner::TargetGpu& target,
                                              std::vector<report::LargeSample>& largest);

/// Returns the sample as a run would train on it, or with the reason if it cannot be used. Decodes
/// its media. Throws only errors that are not UserError (kBadData), such as out of memory.
report::SamplePreview make_sample_preview(const io::Records& records, const models::Processor& processor,
                                          int64_t index);

}  // namespace vlmtrain::train
