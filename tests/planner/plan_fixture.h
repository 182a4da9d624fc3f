#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "planner/dry_run.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

inline Workload make_workload(data::SampleShape shape, int64_t global_batch_size, int64_t world_size = 1) {
  return {.worst_batches = {{.shapes = {shape}, .first_sample_id = {}}},
          .global_batch_size = global_batch_size,
          .world_size = world_size};
}

/// Dry-runs a config with a batch, like the planner.
inline StepEstimate dry_run(const PlanRequest& request, const StepConfig& step_config, const SampleBatch& batch) {
  const auto limit =
      compute_memory_limit(request.target, request.mode, request.limit_gigabytes, request.workload.world_size);
  Workload workload = request.workload;
  workload.worst_batches = {batch};
  return PlanEvaluator(
             {.job = request.job, .target = request.target, .workload = workload, .limit_bytes = limit.limit_bytes})
      .dry_run(step_config);
}

/// A global batch of one sample with one image on an RTX 4090, without suggestions.
inline PlanRequest make_one_image_request(const std::string& preset, const PresetFolder& model, double gigabytes) {
  return {.model = preset,
          .job = model.job(),
          .target = find_target_gpu("rtx4090"),
          .limit_gigabytes = gigabytes,
          .workload = make_workload(model.shape({.images = 1}), 1),
          .constraints = {},
          .with_suggestions = false,
          .with_split_plan = false};
}

/// SmolVLM-256M, whose activations do not all fit.
class PlanTest : public testing::Test {
 protected:
  PlanRequest request(double gpu_gigabytes) const {
    return {.model = "smolvlm-256m",
            .job = model_.job(),
            .target = make_target_gpu(gpu_gigabytes),
            .limit_gigabytes = std::nullopt,
            .workload = make_workload(one_image_, 16),
            .constraints = {},
            .with_split_plan = false};
  }

  void expect_fits(const Plan& plan) const {
    EXPECT_TRUE(plan.fits);
    EXPECT_TRUE(plan.best_estimate.fits);
    EXPECT_TRUE(plan.best_estimate.is_from_dry_run);
    EXPECT_LE(plan.best_estimate.peaks.reserved_bytes, plan.limit.limit_bytes);
    EXPECT_LE(plan.total_bytes() + plan.limit.margin_bytes, plan.limit.allowed_bytes);
  }

  /// Images of 5 tiles each, whose dry runs are shorter than those of the default size (13 tiles).
  data::SampleShape make_wide_images(int64_t images) const {
    return model_.shape({.images = images, .image_width = 1024, .image_height = 256});
  }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape one_image_ = model_.shape({.images = 1});
  const data::SampleShape wide_image_ = make_wide_images(1);
};

}  // namespace vlmtrain::planner
