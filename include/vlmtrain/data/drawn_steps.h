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

}  // namespace vlmtrain::data
