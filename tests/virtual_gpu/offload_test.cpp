#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "engine/host_allocations.h"
#include "virtual_gpu/small_run.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/allocation_trace.h"

namespace vlmtrain {
namespace {

class OffloadTest : public testing::TestWithParam<engine::OptimizerStateDtype> {
 protected:
  static SmallRunSettings settings(engine::Offload offload) { return {.states = GetParam(), .offload = offload}; }
};

TEST_P(OffloadTest, StepLaunchesTheSameKernelsAndCopiesNothing) {
  const auto run_step = [](engine::Offload offload) {
    SmallRun run(settings(offload));
    run.step();
    virtual_gpu().reset();
    run.step();
    expect_accepted_without_synchronization();
    return std::tuple(launches_by_kernel(), counters().host_to_device_pinned.bytes);
  };
  EXPECT_EQ(run_step(engine::Offload::kOptimizer), run_step(engine::Offload::kNone));
}

TEST_P(OffloadTest, DeviceMemoryIsSmallerByTheStateOnTheHost) {
  const at::Device device = memory::open_device("cuda");
  int64_t host_bytes = 0, num_tensors = 0;
  const auto measure = [&](engine::Offload offload) {
    memory::empty_cache(device);
    const int64_t before = memory::get_device_memory_stats(device).allocated_bytes;
    SmallRun run(settings(offload));
    host_bytes = run.training().optimizer.host_bytes();
    num_tensors = std::ssize(run.training().optimizer.state());
    return memory::get_device_memory_stats(device).allocated_bytes - before;
  };
  const int64_t resident = measure(engine::Offload::kNone);
  EXPECT_EQ(host_bytes, 0);
  const int64_t offloaded = measure(engine::Offload::kOptimizer);
  EXPECT_GT(host_bytes, 0);
  constexpr int64_t kAllocatorRounding = 512;
  EXPECT_NEAR(static_cast<double>(resident - offloaded), static_cast<double>(host_bytes),
              static_cast<double>(num_tensors * kAllocatorRounding));
}

TEST_P(OffloadTest, UpdateAllocatesNothing) {
  SmallRun run(settings(engine::Offload::kOptimizer));
  run.step();
  const memory::AllocationTrace trace(at::Device(at::kCUDA, 0));
  const auto update = run.prepare();
  const size_t events = trace.events().size();
  const HostAllocations on_host;
  run.apply(update);
  EXPECT_EQ(on_host.count(), 0);
  EXPECT_EQ(trace.events().size(), events);
}

/// Sum of the bytes of the blocks' sections, adapters excluded.
int64_t compute_block_bytes(const models::VisionLanguageModel& model) {
  using SectionKind = nn::ShardedBlock::SectionKind;
  int64_t bytes = 0;
  for (const auto& block : model.parameters().blocks()) {
    for (const auto kind : {SectionKind::kTrained, SectionKind::kFrozen})
      bytes += static_cast<int64_t>(block.sharded_block->host_shard(kind).nbytes());
  }
  return bytes;
}

class OffloadedWeights : public testing::TestWithParam<SmallRunSettings> {
 protected:
  static SmallRunSettings settings() {
    SmallRunSettings settings = GetParam();
    settings.offload = engine::Offload::kWeights;
    return settings;
  }
};

/// Each micro-batch copies a block for its forward pass, and again for its backward pass unless it is still
/// there.
TEST_P(OffloadedWeights, BlocksAreCopiedTwicePerMicroBatchWithoutRaces) {
  SmallRun run(settings());
  run.step();
  SmallRunSettings resident_settings = GetParam();
  SmallRun resident(resident_settings);
  resident.step();
  virtual_gpu().reset();
  resident.step();
  const uint64_t input_bytes = counters().host_to_device_pinned.bytes;
  const uint64_t launches = counters().num_launches;

  virtual_gpu().reset();
  run.step();
  expect_accepted_without_synchronization();
  const auto block_bytes = static_cast<uint64_t>(compute_block_bytes(run.model()));
  EXPECT_EQ(run.model().parameters().host_block_bytes(), static_cast<int64_t>(block_bytes));
  const auto micro_batches = static_cast<uint64_t>(run.num_micro_batches());
  const uint64_t copied_bytes = counters().host_to_device_pinned.bytes - input_bytes;
  EXPECT_GT(copied_bytes, micro_batches * block_bytes);
  EXPECT_LT(copied_bytes, 2 * micro_batches * block_bytes);
  EXPECT_EQ(counters().num_early_side_stream_copies, 0U);
  EXPECT_GE(counters().num_launches, launches) << "borders of adapters need weights that stay";
}

TEST_P(OffloadedWeights, DeviceHasTwoBlocks) {
  const at::Device device = memory::open_device("cuda");
  int64_t host_bytes = 0, slot_bytes = 0;
  const auto measure = [&](const SmallRunSettings& measured) {
    memory::empty_cache(device);
    const int64_t before = memory::get_device_memory_stats(device).allocated_bytes;
    SmallRun run(measured);
    host_bytes = run.training().optimizer.host_bytes() + run.model().parameters().host_block_bytes();
    slot_bytes = run.training().sharded_blocks ? run.training().sharded_blocks->bytes() : 0;
    return memory::get_device_memory_stats(device).allocated_bytes - before;
  };
  const int64_t resident = measure(GetParam()), offloaded = measure(settings());
  EXPECT_GT(slot_bytes, 0);
  // The allocator rounds each tensor up to 512 bytes; borders of adapters take more.
  EXPECT_NEAR(static_cast<double>(resident - offloaded), static_cast<double>(host_bytes - slot_bytes), 2e5);
}

class OffloadedActivations : public testing::TestWithParam<SmallRunSettings> {
 protected:
  static SmallRunSettings settings() {
    SmallRunSettings settings = GetParam();
    settings.recompute = true;
    return settings;
  }
  static SmallRunSettings offloaded_settings() {
    SmallRunSettings offloaded = settings();
    offloaded.offload_activations = true;
    return offloaded;
  }
};

/// Counters of a second step, whose allocator has its memory already.
vgpu::GpuCounters count_step(SmallRun& run) {
  run.step();
  virtual_gpu().reset();
  run.step();
  expect_accepted_without_waits();
  return counters();
}

TEST_P(OffloadedActivations, AreCopiedOutAndBackWithoutRacesOrWaits) {
  SmallRun resident(settings()), offloaded(offloaded_settings());
  const auto expected = count_step(resident), actual = count_step(offloaded);
  EXPECT_EQ(actual.num_launches, expected.num_launches);
  EXPECT_EQ(actual.num_matmuls, expected.num_matmuls);
  EXPECT_EQ(actual.num_host_allocations, expected.num_host_allocations);
  const uint64_t out = actual.device_to_host_pinned.bytes - expected.device_to_host_pinned.bytes,
                 in = actual.host_to_device_pinned.bytes - expected.host_to_device_pinned.bytes;
  EXPECT_GT(out, 0U);
  EXPECT_LT(in, out) << "the last input of a forward pass is still on the device";
  const auto copies_out = actual.device_to_host_pinned.num_calls - expected.device_to_host_pinned.num_calls,
             copies_in = actual.host_to_device_pinned.num_calls - expected.host_to_device_pinned.num_calls;
  EXPECT_EQ(copies_out - copies_in, static_cast<uint64_t>(offloaded.num_micro_batches()));
}

TEST_P(OffloadedActivations, PeakIsSmallerAndTheMemoryThatRemainsIsEqual) {
  const at::Device device = memory::open_device("cuda");
  const auto measure = [&](const SmallRunSettings& measured) {
    memory::empty_cache(device);
    SmallRun run(measured);
    run.step();
    memory::reset_peak_memory_stats(device);
    run.step();
    return memory::get_device_memory_stats(device);
  };
  const auto resident = measure(settings()), offloaded = measure(offloaded_settings());
  EXPECT_LE(offloaded.allocated_peak_bytes, resident.allocated_peak_bytes);
  EXPECT_EQ(offloaded.allocated_bytes, resident.allocated_bytes);
}

/// The inputs of all blocks of a micro-batch, in bf16.
TEST(OffloadedActivationsTest, CopiedBytesEqualTheFormula) {
  SmallRunSettings settings{.recompute = true, .micro_batch_size = 1, .offload_activations = true};
  SmallRun run(settings);
  const auto& parameters = run.model().parameters().all();
  const auto find_size = [&](std::string_view suffix, int64_t dimension) {
    const auto it =
        std::ranges::find_if(parameters, [&](const auto& parameter) { return parameter.name.ends_with(suffix); });
    return it->sizes()[static_cast<size_t>(dimension)];
  };
  const int64_t text_row = 2 * find_size("text_model.layers.0.input_layernorm.weight", 0),
                vision_row = 2 * find_size("encoder.layers.0.layer_norm1.weight", 0),
                positions = find_size("position_embedding.weight", 0);
  int64_t expected = 0;
  for (const auto& sample : run.samples()) {
    const auto shape = data::get_sample_shape(sample);
    expected += run.model().num_language_blocks() * shape.tokens * text_row +
                run.model().num_vision_blocks() * shape.pixel_rows * positions * vision_row;
  }
  SmallRun resident({.recompute = true, .micro_batch_size = 1});
  const uint64_t other = count_step(resident).device_to_host_pinned.bytes;
  EXPECT_EQ(count_step(run).device_to_host_pinned.bytes - other, static_cast<uint64_t>(expected));
}

INSTANTIATE_TEST_SUITE_P(Runs, OffloadedActivations,
                         testing::Values(SmallRunSettings{}, SmallRunSettings{.keep_attention = true},
                                         SmallRunSettings{.lora = nn::LoraSettings{.rank = 4}},
                                         SmallRunSettings{.frozen_tower = true},
                                         SmallRunSettings{.offload = engine::Offload::kGradients},
                                         SmallRunSettings{.parity_case = "qwen2_5_vl_mixed", .micro_batch_size = 1},
                                         SmallRunSettings{.parity_case = "qwen3_vl_mixed"},
                                         SmallRunSettings{.parity_case = "gemma4_per_layer", .micro_batch_size = 1}));

INSTANTIATE_TEST_SUITE_P(Runs, OffloadedWeights,
                         testing::Values(SmallRunSettings{}, SmallRunSettings{.recompute = true},
                                         SmallRunSettings{.lora = nn::LoraSettings{.rank = 4}},
                                         SmallRunSettings{.lora = nn::LoraSettings{.rank = 4},
                                                          .quantization = nn::Quantization::kNf4},
                                         SmallRunSettings{.parity_case = "qwen2_5_vl_mixed", .micro_batch_size = 1}));

INSTANTIATE_TEST_SUITE_P(States, OffloadTest,
                         testing::Values(engine::OptimizerStateDtype::kFp32, engine::OptimizerStateDtype::kBf16,
                                         engine::OptimizerStateDtype::k8Bit),
                         [](const auto& instance) { return "With_" + engine::to_string(instance.param); });

}  // namespace
}  // namespace vlmtrain
