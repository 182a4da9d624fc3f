#pragma once

#include <span>

#include "vlmtrain/engine/cut.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

/// The samples of a step in micro-batches that fit `table` each, in as few as are found: the fewest of first-fit and
/// best-fit decreasing by each of the sizes, then, where a bound leaves room for fewer, a short search; then moved
/// about until they are even. A unit that does not fit alone is a micro-batch by itself. Those that take most come
/// first, samples of one stay in their order; where equal numbers of samples in their order do as well, that is the
/// cut.
///
/// A pure function of its arguments, the same on every machine.
engine::MicroBatchSplit split_by_memory(std::span<const data::SampleShape> shapes, const MemoryCostTable& table,
                                        const engine::SplitConstraint& rule = {});

}  // namespace vlmtrain::planner
