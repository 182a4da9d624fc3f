#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// "21.3 GB" of 10⁹ bytes; "<0.1 GB" for what would round to nothing.
std::string gigabytes(int64_t bytes);

/// "37 ms", "2.76 s", "20.8 s", "135 s".
std::string seconds_words(double seconds);

/// "none", "all", "vision 9", "vision all, language 12"; "all" is of the model's blocks.
std::string recompute_words(const models::RecomputeBlocks& blocks, const planner::RehearsalDetail& detail);

/// "all tiles in one vision pass", "4 tiles a vision pass"; for patches, which are not cut inside a picture or a frame,
/// "one picture a vision pass", "2,048 patches a vision pass".
std::string vision_pass_words(const planner::Plan& plan);

/// "LoRA of rank 16", "full fine-tuning".
std::string training_words(const planner::Plan& plan);

/// Where a step is: "language block 12, backward pass".
std::string place_words(const memory::Place& place, bool backward);

struct Fact {
  std::string name;
  std::string text;
};

/// What a plan is for: model, sample, card, margin, context, and how its step is done.
std::vector<Fact> plan_facts(const planner::Plan& plan);

}  // namespace vlmtrain::report
