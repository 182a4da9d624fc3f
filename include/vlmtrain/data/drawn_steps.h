#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/sample_shapes.h"

namespace vlmtrain::data {

/// The samples of a step by the rank that trains on them.
using ShapesByRank = std::vector<std::vector<SampleShape>>;

/// What the samples are of `count` steps of `units` units each, which lie spread evenly over the first epoch, as a run
/// draws them: with its shares, its curriculum and its packs, unit i of a step for rank i % ranks. Where the epoch has
/// fewer steps, it goes on behind its end. Samples of unknown shape are passed over, as the loader does with bad ones;
/// steps that have no other are left out. REQUIRES: units, count, ranks > 0.
std::vector<ShapesByRank> simulate_steps(const SampleOrder& order, const SampleShapes& shapes, int64_t units,
                                         int64_t count, int64_t ranks);

}  // namespace vlmtrain::data
