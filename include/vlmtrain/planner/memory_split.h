#pragma once

#include <span>

#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

/// Splits the samples of a step into as few micro-batches as it finds that each fit `table`.
///
/// Takes the best of first-fit and best-fit decreasing by each size, searches briefly for fewer
/// micro-batches if a lower bound allows them, and then balances them. A unit of `rule` that does not fit
/// alone becomes a micro-batch of its own. The largest micro-batches come first, and samples keep their
/// order within one. If an equal split in order needs as few micro-batches and no more memory, it is
/// returned instead.
///
/// A pure function of its arguments with the same result on every machine.
engine::MicroBatchSplit split_by_memory(std::span<const data::SampleShape> shapes, const MemoryCostTable& table,
                                        const engine::SplitConstraint& rule = {});

}  // namespace vlmtrain::planner
