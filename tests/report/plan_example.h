#pragma once

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::report {

/// An artificial plan: 16 samples as 2 × 8 on a GPU of 25 GB, with 20.6 GB in use and a margin of
/// 2.5 GB.
inline planner::Plan make_example_plan() {
  using memory::Component;
  constexpr int64_t kMB = 1'000'000;
  planner::Plan plan;
  plan.model = "smolvlm-500m";
  plan.fits = true;
  plan.limit = {.allowed_bytes = 25'000 * kMB,
                .margin_bytes = 2'500 * kMB,
                .margin_percent = 10,
                .context_bytes = 600 * kMB,
                .limit_bytes = 21'900 * kMB};
  plan.target = planner::TargetGpu{.gpu = nullptr,
                                   .memory_bytes = 25'000 * kMB,
                                   .context_bytes = 600 * kMB,
                                   .is_context_measured = false,
                                   .description = "a GPU of 24 GB"};
  plan.workload.global_batch_size = 16;
  plan.worst_batch = {.shapes = {{.tokens = 2622,
                                  .label_tokens = 64,
                                  .image_tokens = 2106,
                                  .num_images = 2,
                                  .pixel_rows = 26,
                                  .row = {.height = 384, .width = 512}}},
                      .first_sample_id = {}};
  plan.best_estimate = {.step_config = {.micro_batch_size = 2, .recompute = {.vision = 9, .language = 0}},
                        .peaks = {.allocated_bytes = 19'000 * kMB, .reserved_bytes = 20'000 * kMB},
                        .step_seconds = 2.5,
                        .tokens_per_second = 16780,
                        .fits = true,
                        .is_from_dry_run = true};
  auto& detail = plan.detail;
  detail.num_vision_blocks = 27;
  detail.num_language_blocks = 24;
  detail.num_parameters = detail.num_trainable_parameters = 507'482'304;
  const auto set = [&](Component component, int64_t megabytes) {
    detail.peak.bytes_by_component[static_cast<size_t>(component)] = megabytes * kMB;
  };
  set(Component::kWeights, 1'000);
  set(Component::kGradients, 2'000);
  set(Component::kOptimizer, 6'000);
  set(Component::kVision, 7'000);
  set(Component::kLanguage, 2'500);
  set(Component::kLoss, 400);
  set(Component::kInput, 60);
  set(Component::kOther, 2);
  set(Component::kWorkspace, 38);
  detail.peak.allocated_bytes = 19'000 * kMB;
  detail.peak.tag = {Component::kLanguage, 12};
  detail.peak.is_backward = true;

  const auto add = [&](int64_t size, int64_t vision, int64_t megabytes, double seconds) {
    planner::StepEstimate estimate;
    estimate.step_config = {.micro_batch_size = size, .recompute = {.vision = vision, .language = 0}};
    estimate.peaks.reserved_bytes = megabytes * kMB;
    estimate.step_seconds = seconds;
    estimate.tokens_per_second = 41'952 / seconds;
    estimate.fits = estimate.peaks.reserved_bytes <= plan.limit.limit_bytes;
    plan.alternatives.push_back(estimate);
  };
  add(1, 0, 16'000, 2.75);
  add(2, 0, 23'000, 2.4);
  plan.alternatives.push_back(plan.best_estimate);
  add(4, 0, 37'000, 2.2);
  plan.suggestions = {
      {.arguments = {}, .note = "with 1.1 GB more nothing would be recomputed", .makes_plan_fit = true}};
  plan.planning_stats = {.seconds = 0.81, .num_dry_runs = 5, .dry_run_seconds = 0.7};
  return plan;
}

/// The same on a GPU of 15 GB, which lacks 7.1 GB for 20.6 GB and a margin of 1.5 GB.
inline planner::Plan make_unfit_example_plan() {
  planner::Plan plan = make_example_plan();
  plan.fits = plan.best_estimate.fits = false;
  plan.best_estimate.step_config.micro_batch_size = 1;
  plan.best_estimate.step_config.recompute = {.vision = 27, .language = 24};
  plan.limit.allowed_bytes = plan.gpu().memory_bytes = 15'000'000'000;
  plan.limit.margin_bytes = 1'500'000'000;
  plan.limit.limit_bytes = 12'900'000'000;
  plan.suggestions = {{.arguments = {}, .note = "take a smaller model", .makes_plan_fit = false},
                      {.arguments = {"lora.rank=16", "model.quantization=nf4"},
                       .note = "trains adapters; 9.1 GB are enough then",
                       .makes_plan_fit = true,
                       .total_bytes = 9'100'000'000}};
  return plan;
}

}  // namespace vlmtrain::report
