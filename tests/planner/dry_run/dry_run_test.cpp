#include "planner/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {
namespace {

using memory::Component;
using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

int64_t sum(const memory::ComponentBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

TEST_F(DryRunTest, IsDeterministicAcrossProcesses) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const StepConfig two = make_step_config(2);
  const DryRunResult first = process.dry_run(request(two, 4));
  ASSERT_THAT(first.steps, SizeIs(kSteps));
  // Other dry runs in between have no effect.
  process.dry_run(request({.micro_batch_size = 1, .recompute = {5, 9}, .expandable_segments = false}, 3));
  const DryRunResult repeated = process.dry_run(request(two, 4));
  const DryRunResult other_process = dry_run(model_.job(), two, 4);
  for (const DryRunResult* other : {&repeated, &other_process}) {
    EXPECT_EQ(list_peaks(*other), list_peaks(first));
    EXPECT_EQ(other->detail->peak.bytes_by_component, first.detail->peak.bytes_by_component);
    EXPECT_EQ(other->detail->peak.event_index, first.detail->peak.event_index);
    EXPECT_EQ(other->costs->total.num_kernel_launches, first.costs->total.num_kernel_launches);
    EXPECT_EQ(other->costs->total.seconds, first.costs->total.seconds);
    EXPECT_EQ(other->costs->total.bytes_moved, first.costs->total.bytes_moved);
  }
}

/// Libraries allocate their workspaces in the first step.
TEST_F(DryRunTest, MemoryIsStableFromTheSecondStep) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  ASSERT_THAT(result.steps, SizeIs(kSteps));
  EXPECT_GE(result.steps[1].allocated_bytes, result.steps[0].allocated_bytes);
  EXPECT_EQ(result.steps[2].allocated_bytes, result.steps[1].allocated_bytes);
  EXPECT_EQ(result.steps[2].reserved_bytes, result.steps[1].reserved_bytes);
  for (const auto& step : result.steps) EXPECT_GE(step.reserved_bytes, step.allocated_bytes);
  EXPECT_EQ(result.num_allocation_retries, 0);
  EXPECT_FALSE(result.ran_out_of_memory);
}

TEST_F(DryRunTest, TheComponentsAddUpToTheAllocatorsPeak) {
  for (const auto& [gpu, segments] : {std::pair{"h100", true}, {"h100", false}, {"rtx4090", true}}) {
    SCOPED_TRACE(gpu);
    const DryRunResult result =
        dry_run(model_.job(), {.micro_batch_size = 2, .recompute = {}, .expandable_segments = segments}, 4, gpu);
    const auto& peak = result.detail->peak;
    EXPECT_EQ(sum(peak.bytes_by_component), peak.allocated_bytes);
    EXPECT_EQ(peak.allocated_bytes, result.compute_max_peaks().allocated_bytes) << "as the allocator's statistics say";
    EXPECT_THAT(peak.bytes_by_component, Each(testing::Ge(0)));
    EXPECT_GT(get_bytes(peak.bytes_by_component, Component::kWorkspace), 0);
    EXPECT_GT(get_bytes(peak.bytes_by_component, Component::kVision), 0);
    EXPECT_GT(get_bytes(peak.bytes_by_component, Component::kLanguage), 0);
    EXPECT_LT(get_bytes(peak.bytes_by_component, Component::kOther), kMiB) << "nearly everything has a name";
  }
}

TEST_F(DryRunTest, TheTimelineIsTheLastStep) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  auto shrinking = request(make_step_config(3), 3);
  shrinking.steps.push_back({{shape_, 1}});
  const DryRunResult result = process.dry_run(shrinking);
  const auto& timeline = result.detail->timeline;
  ASSERT_FALSE(timeline.empty());
  ASSERT_LT(result.steps.back().allocated_bytes, result.steps[1].allocated_bytes) << "another peak than before";
  int64_t allocated = 0;
  int64_t reserved = 0;
  bool forward = false;
  bool backward = false;
  for (const auto& point : timeline) {
    allocated = std::max(allocated, sum(point.bytes_by_component));
    reserved = std::max(reserved, point.reserved_bytes);
    EXPECT_GE(point.reserved_bytes, sum(point.bytes_by_component));
    (point.is_backward ? backward : forward) = true;
  }
  EXPECT_EQ(allocated, result.steps.back().allocated_bytes);
  EXPECT_EQ(reserved, result.steps.back().reserved_bytes);
  EXPECT_TRUE(forward && backward);
}

TEST_F(DryRunTest, OptionalPartsAreOffByDefault) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  DryRunRequest minimal = request({}, 1);
  const DryRunResult full = process.dry_run(minimal);
  minimal.with_costs = minimal.with_detail = minimal.with_timeline = false;
  const DryRunResult result = process.dry_run(minimal);
  EXPECT_FALSE(result.costs);
  EXPECT_FALSE(result.detail);
  EXPECT_EQ(list_peaks(result), list_peaks(full)) << "looking changes nothing";
  minimal.with_detail = true;
  EXPECT_THAT(process.dry_run(minimal).detail->timeline, IsEmpty());
}

TEST_F(DryRunTest, GradientsOfSeparateTasksNeedSeparateBuckets) {
  Job job = model_.job();
  const DryRunResult together = dry_run(job, make_step_config(1), 2);
  job.objective.tasks = {
      .num_tasks = 3, .weights = {1, 1, 1}, .measure_gradient_norms = true, .resolve_gradient_conflicts = true};
  const DryRunResult separate = dry_run(job, make_step_config(1), 2);
  const int64_t one = together.detail->num_trainable_parameters * 4;
  const int64_t used_bytes = find_max_bytes(*separate.detail, Component::kGradients);
  EXPECT_GE(used_bytes, 3 * one);
  // Each tensor begins at a multiple of 512 bytes.
  EXPECT_LE(used_bytes, 3 * one + 3 * 512 * 1000);
  EXPECT_GE(separate.compute_max_peaks().allocated_bytes - together.compute_max_peaks().allocated_bytes, 2 * one);
  EXPECT_GT(separate.costs->optimizer.num_kernel_launches, 0);
}

TEST_F(DryRunTest, AFrozenTowerKeepsNoActivations) {
  Job frozen = model_.job();
  frozen.frozen_parts.vision_tower = true;
  const auto trained_peak = dry_run(model_.job(), make_step_config(4), 4).detail->peak;
  const auto frozen_peak = dry_run(frozen, make_step_config(4), 4).detail->peak;
  EXPECT_LT(get_bytes(frozen_peak.bytes_by_component, Component::kVision),
            get_bytes(trained_peak.bytes_by_component, Component::kVision) / 10);
}

TEST_F(DryRunTest, RecomputationLowersTheActivationsOfItsTower) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const auto dry_run_recompute = [&](models::RecomputeBlockCounts blocks) {
    return process.dry_run(request({.micro_batch_size = 2, .recompute = blocks}, 2));
  };
  const DryRunResult none = dry_run_recompute({});
  const DryRunResult vision = dry_run_recompute({.vision = 12, .language = 0});
  const DryRunResult language = dry_run_recompute({.vision = 0, .language = 30});
  const DryRunResult half = dry_run_recompute({.vision = 6, .language = 0});
  const auto activations = [](const DryRunResult& result, Component component) {
    return find_max_bytes(*result.detail, component);
  };
  EXPECT_LT(activations(vision, Component::kVision), activations(none, Component::kVision) / 2);
  EXPECT_LT(activations(language, Component::kLanguage), activations(none, Component::kLanguage) / 2);
  EXPECT_GT(activations(half, Component::kVision), activations(vision, Component::kVision));
  EXPECT_LT(activations(half, Component::kVision), activations(none, Component::kVision));
  EXPECT_LT(vision.compute_max_peaks().reserved_bytes, none.compute_max_peaks().reserved_bytes);
  EXPECT_LT(half.compute_max_peaks().reserved_bytes, none.compute_max_peaks().reserved_bytes);
  for (const DryRunResult* recomputed : {&vision, &language, &half}) {
    EXPECT_GT(recomputed->costs->total.matmul_flops, none.costs->total.matmul_flops);
    EXPECT_GT(recomputed->costs->total.seconds, none.costs->total.seconds);
    EXPECT_EQ(recomputed->costs->vision_blocks_forward.matmul_flops, none.costs->vision_blocks_forward.matmul_flops);
  }
  // Recomputing all blocks repeats exactly their forward pass.
  EXPECT_EQ(vision.costs->total.matmul_flops,
            none.costs->total.matmul_flops + none.costs->vision_blocks_forward.matmul_flops);
  EXPECT_EQ(language.costs->total.attention_flops,
            none.costs->total.attention_flops + none.costs->language_blocks_forward.attention_flops);
}

TEST_F(DryRunTest, FewerTilesAndSmallerLossChunksNeedLess) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const StepConfig all{.micro_batch_size = 4, .recompute = {12, 30}};
  StepConfig fewer_tiles = all;
  fewer_tiles.vision_tiles_per_pass = 5;
  StepConfig small_chunks = all;
  small_chunks.loss_chunk_rows = 32;
  const DryRunResult full_result = process.dry_run(request(all, 4));
  const DryRunResult tile_result = process.dry_run(request(fewer_tiles, 4));
  const DryRunResult chunk_result = process.dry_run(request(small_chunks, 4));
  EXPECT_LT(find_max_bytes(*tile_result.detail, Component::kVision),
            find_max_bytes(*full_result.detail, Component::kVision));
  EXPECT_LT(find_max_bytes(*chunk_result.detail, Component::kLoss),
            find_max_bytes(*full_result.detail, Component::kLoss));
}

TEST_F(DryRunTest, InputsOfTheNextMicroBatchAreCounted) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  StepConfig without_copies_ahead = make_step_config(2);
  without_copies_ahead.copies_ahead = false;
  const auto inputs = [&](const StepConfig& step_config, int64_t samples) {
    return find_max_bytes(*process.dry_run(request(step_config, samples)).detail, Component::kInput);
  };
  const int64_t one = inputs(without_copies_ahead, 6);
  EXPECT_GT(one, 10 * kMiB);
  EXPECT_EQ(inputs(make_step_config(2), 6), 2 * one);
  EXPECT_EQ(inputs(make_step_config(2), 2), one) << "there is no next one";
}

/// The premise of planning: a GPU without limit that reports the same size makes the same
/// allocations as the GPU itself, as long as there is memory. The reported size matters: expandable
/// segments reserve addresses in proportion to it, and the last free block extends to the end of
/// the addresses.
class GpuSizeTest : public DryRunTest, public testing::WithParamInterface<int64_t> {};

TEST_P(GpuSizeTest, AnUnlimitedGpuPredictsAGpuOfThatSize) {
  const auto run_on_gpu = [&](const VirtualGpu& gpu) {
    DryRunProcess process(model_.job(), gpu);
    return process.dry_run(request(make_step_config(2), 2, 2));
  };
  const int64_t approximate_bytes =
      run_on_gpu({.gpu = "h100", .memory_bytes = kUnlimited}).compute_max_peaks().reserved_bytes;
  const int64_t size = approximate_bytes + GetParam();
  const DryRunResult planned_result = run_on_gpu({.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = size});
  const int64_t others = size - planned_result.compute_max_peaks().reserved_bytes;
  const DryRunResult large_enough = run_on_gpu({.gpu = "h100", .memory_bytes = size, .initial_used_bytes = others});
  EXPECT_FALSE(large_enough.ran_out_of_memory);
  EXPECT_EQ(large_enough.num_allocation_retries, 0);
  EXPECT_EQ(list_peaks(large_enough), list_peaks(planned_result));
  const DryRunResult too_small =
      run_on_gpu({.gpu = "h100", .memory_bytes = size, .initial_used_bytes = others + 2 * kMiB});
  EXPECT_TRUE(too_small.ran_out_of_memory || too_small.num_allocation_retries > 0);
}

/// On a GPU that reports its size, PyTorch runs out of memory earlier.
TEST_F(DryRunTest, ATensorLargerThanTheReportedMemoryIsMeasured) {
  const PresetFolder tiny("smolvlm-tiny");
  const DryRunRequest longest{.step_config = make_step_config(1),
                              .steps = {{{tiny.shape({.images = 0, .text_tokens = 100'000}), 1}}}};
  const auto measure_peak = [&](const VirtualGpu& gpu) {
    return DryRunProcess(tiny.job(), gpu).dry_run(longest).compute_max_peaks().allocated_bytes;
  };
  const int64_t peak = measure_peak({.gpu = "h100", .memory_bytes = kUnlimited});
  ASSERT_GT(peak, kGiB);
  EXPECT_EQ(measure_peak({.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = 4 * kMiB}), peak);
}

INSTANTIATE_TEST_SUITE_P(BytesAboveThePeak, GpuSizeTest, testing::Values(512 * kMiB, 2 * kGiB, 16 * kGiB));

}  // namespace
}  // namespace vlmtrain::planner
