#pragma once

#include <string>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/planner/limit.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The samples that may need most memory: that of most pixels, that of most label tokens, and those of most tokens up
/// to `count` in all; the longest first. Of several with the same shape the first.
std::vector<report::LargeSample> find_largest_samples(const data::SampleIndex& sample_index, int64_t count);

/// Plans the run for the card and rehearses a step of each of the largest samples alone, as the plan has it: enters
/// what each takes, the most first. `model`: as the user named it.
report::PredictionTarget predict_memory(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                        const Config& config, const std::string& model,
                                        const planner::TargetGpu& target, std::vector<report::LargeSample>& largest);

}  // namespace vlmtrain::train
