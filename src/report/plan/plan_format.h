#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// "21.3 GB" of 10⁹ bytes; "<0.1 GB" for what would round to nothing.
std::string format_gigabytes(int64_t bytes);

/// "37 ms", "2.76 s", "20.8 s", "135 s".
std::string format_seconds(double seconds);

/// "none", "all", "vision 9", "vision all, language 12"; "all" is of the model's blocks.
std::string format_recompute(const models::RecomputeBlocks& blocks, const planner::DryRunDetail& detail);

/// "all tiles in one vision pass", "4 tiles a vision pass"; for patches, which are not cut inside a picture or a frame,
/// "one picture a vision pass", "2,048 patches a vision pass".
std::string format_vision_pass(const planner::Plan& plan);

/// "LoRA of rank 16", "full fine-tuning".
std::string format_training(const planner::Plan& plan);

/// Where a step is: "language block 12, backward pass".
std::string format_memory_tag(const memory::MemoryTag& tag, bool backward);

struct PlanFact {
  std::string name;
  std::string text;
};

/// What a plan is for: model, sample, card, margin, context, and how its step is done.
std::vector<PlanFact> list_plan_facts(const planner::Plan& plan);

}  // namespace vlmtrain::report
