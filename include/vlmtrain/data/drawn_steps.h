#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/sample_shapes.h"

namespace vlmtrain::data {

/// What the samples are of `count` steps of `units` units each, which lie spread evenly over the first epoch, as a run
/// draws them: with its shares, its curriculum and its packs. Where the epoch has fewer steps, it goes on behind its
/// end. Samples of unknown shape are passed over, as the loader does with bad ones; steps that have
/// no other are left out. REQUIRES: units, count > 0.
std::vector<std::vector<SampleShape>> drawn_steps(const DrawOrder& order, const SampleShapes& shapes, int64_t units,
                                                  int64_t count);

/// The samples of a step by the rank that trains on them.
using StepParts = std::vector<std::vector<SampleShape>>;

/// The same steps, of which each unit is of the rank that the loader gives it to: unit i of a step of rank i % ranks.
std::vector<StepParts> drawn_parts(const DrawOrder& order, const SampleShapes& shapes, int64_t units, int64_t count,
                                   int64_t ranks);

}  // namespace vlmtrain::data
