#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <tuple>

#include "engine/host_allocations.h"
#include "virtual_gpu/card.h"
#include "virtual_gpu/small_run.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/memory/trace.h"

namespace vlmtrain {
namespace {

struct StepCase {
  std::string name;
  SmallRunSettings settings;
  uint64_t most_launches;  ///< of a step, on any architecture
};

void PrintTo(const StepCase& step_case, std::ostream* out) {
  *out << step_case.name;
}

class TrainingStepTest : public testing::TestWithParam<StepCase> {
 protected:
  SmallRun run_{GetParam().settings};

  /// What the step did.
  vgpu::Counters step() {
    card().reset();
    run_.step();
    return counters();
  }
};

TEST_P(TrainingStepTest, LaunchesWhatTheCardAccepts) {
  for (int i = 0; i < 3; ++i) {
    const auto done = step();
    EXPECT_GT(done.launches, 0U);
    EXPECT_LE(done.launches, GetParam().most_launches);
    RecordProperty("launches", static_cast<int>(done.launches));
    EXPECT_EQ(done.rejected_launches, 0U);
    EXPECT_GT(done.products, 0U);
    EXPECT_EQ(unknown_calls(), (std::map<std::string, uint64_t>{}));
  }
}

TEST_P(TrainingStepTest, NeverWaitsForTheDevice) {
  step();
  for (int i = 0; i < 2; ++i) {
    const auto done = step();
    EXPECT_EQ(done.device_to_host_pinned.calls + done.device_to_host_pageable.calls, 0U);
    EXPECT_EQ(done.host_to_device_pageable.calls, 0U);
    EXPECT_EQ(done.stream_synchronizations, 0U);
    EXPECT_EQ(done.event_synchronizations, 0U);
    EXPECT_EQ(done.device_synchronizations, 0U);
    EXPECT_EQ(done.blocking_copies, 0U);
  }
}

TEST_P(TrainingStepTest, AsksTheDriverForNoMemoryOnceItIsWarm) {
  step();
  step();
  const auto done = step();
  EXPECT_EQ(done.allocations, 0U);
  EXPECT_EQ(done.frees, 0U);
  EXPECT_EQ(done.host_allocations, 0U);
}

TEST_P(TrainingStepTest, AppliesItsUpdateWithoutTakingMemory) {
  const memory::AllocationTrace trace(at::Device(at::kCUDA, 0));
  for (int i = 0; i < 2; ++i) {
    const auto update = run_.prepare();
    const size_t events = trace.events().size();
    EXPECT_GT(events, 0U);
    const HostAllocations on_host;
    run_.apply(update);
    EXPECT_EQ(on_host.count(), 0);
    EXPECT_EQ(trace.events().size(), events) << "memory was taken or given back";
  }
}

TEST_P(TrainingStepTest, DoesTheSameInEveryStepAndInEveryRun) {
  const auto trace = [this](SmallRun& run) {
    card().reset();
    run.step();
    const auto done = counters();
    return std::tuple(launches_by_kernel(), products(), done.host_to_device_pinned.calls,
                      done.host_to_device_pinned.bytes, done.device_to_device.calls, done.device_to_device.bytes,
                      done.fills);
  };
  const auto expected = trace(run_);
  EXPECT_EQ(trace(run_), expected);
  SmallRun another(GetParam().settings);
  EXPECT_EQ(trace(another), expected);
}

TEST_P(TrainingStepTest, GivesLossAndNormWithOneCopyThatNobodyWaitsFor) {
  run_.step();
  const auto result = run_.step();
  card().reset();
  engine::AsyncScalars scalars(result.numbers);
  const auto queued = counters();
  EXPECT_EQ(queued.device_to_host_pinned.calls, 1U);
  EXPECT_EQ(queued.device_to_host_pageable.calls, 0U);
  EXPECT_EQ(queued.stream_synchronizations + queued.event_synchronizations + queued.device_synchronizations, 0U);

  scalars.read();
  const auto read = counters();
  EXPECT_EQ(read.event_synchronizations, 1U);
  EXPECT_EQ(read.stream_synchronizations + read.device_synchronizations, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    , TrainingStepTest,
    testing::Values(
        StepCase{"bf16", {}, 602}, StepCase{"fp32", {.dtype = at::kFloat}, 546},
        StepCase{"bf16_recomputed", {.recompute = true}, 686},
        StepCase{"fp32_recomputed", {.dtype = at::kFloat, .recompute = true}, 638},
        StepCase{"bf16_frozen_tower", {.frozen_tower = true}, 378},
        StepCase{"bf16_tasks", {.tasks = {.count = 2}}, 542},
        StepCase{"bf16_gradnorm", {.tasks = {.count = 2, .weights = {0.5, 1.5}, .gradient_norms = true}}, 557},
        StepCase{"bf16_pcgrad", {.repeats = 2, .tasks = {.count = 3, .resolve_conflicts = true}}, 1352},
        StepCase{"bf16_one_micro_batch", {.micro_batch_size = 4}, 342},
        StepCase{"bf16_untied_tiles", {.parity_case = "full_heads_untied_tiles", .repeats = 4}, 595},
        StepCase{
            "fp32_untied_tiles", {.parity_case = "full_heads_untied_tiles", .dtype = at::kFloat, .repeats = 4}, 530},
        StepCase{"bf16_lora", {.lora = nn::LoraSettings{.rank = 4}}, 666},
        StepCase{"bf16_lora_dropout_recomputed",
                 {.recompute = true, .lora = nn::LoraSettings{.rank = 4, .dropout = 0.1}},
                 1578},
        StepCase{"fp32_lora_text",
                 {.dtype = at::kFloat, .lora = nn::LoraSettings{.rank = 4, .target_modules = {".*text_model.*"}}},
                 434},
        StepCase{"bf16_dora", {.lora = nn::LoraSettings{.rank = 4, .use_dora = true}}, 1372},
        StepCase{"bf16_dora_dropout", {.lora = nn::LoraSettings{.rank = 4, .dropout = 0.1, .use_dora = true}}, 1993},
        StepCase{"bf16_lora_nf4", {.lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kNf4}, 1317},
        StepCase{"bf16_dora_nf4_recomputed",
                 {.recompute = true,
                  .lora = nn::LoraSettings{.rank = 4, .use_dora = true},
                  .quantization = nn::Quantization::kNf4},
                 3470},
        StepCase{"fp32_lora_int8",
                 {.dtype = at::kFloat, .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kInt8},
                 820},
        StepCase{"fp16", {.dtype = at::kHalf}, 541},
        StepCase{"fp16_recomputed", {.dtype = at::kHalf, .recompute = true}, 629},
        StepCase{"fp16_lora", {.dtype = at::kHalf, .lora = nn::LoraSettings{.rank = 4}}, 609},
        StepCase{"fp16_lora_nf4",
                 {.dtype = at::kHalf, .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kNf4},
                 1323},
        StepCase{"fp16_llava_clip_mistral", {.parity_case = "llava_clip_mistral", .dtype = at::kHalf}, 1180},
        StepCase{"fp16_nanovlm_tiles", {.parity_case = "nanovlm_tiles", .dtype = at::kHalf}, 507},
        StepCase{"fp16_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows", .dtype = at::kHalf}, 782},
        StepCase{"fp16_8bit_states", {.dtype = at::kHalf, .states = engine::OptimizerStates::k8Bit}, 587},
        StepCase{"bf16_8bit_states", {.states = engine::OptimizerStates::k8Bit}, 579},
        StepCase{"bf16_bf16_states", {.states = engine::OptimizerStates::kBf16}, 559},
        StepCase{"fp32_bf16_states", {.dtype = at::kFloat, .states = engine::OptimizerStates::kBf16}, 570},
        StepCase{"bf16_text_only", {.parity_case = "text_only"}, 284},
        StepCase{"bf16_llava_clip_llama", {.parity_case = "llava_clip_llama"}, 493},
        StepCase{"bf16_llava_clip_llama_recomputed", {.parity_case = "llava_clip_llama", .recompute = true}, 569},
        StepCase{"bf16_llava_siglip_qwen2", {.parity_case = "llava_siglip_qwen2"}, 358},
        StepCase{"bf16_llava_clip_mistral", {.parity_case = "llava_clip_mistral"}, 593},
        StepCase{"fp32_llava_clip_mistral", {.parity_case = "llava_clip_mistral", .dtype = at::kFloat}, 1125},
        StepCase{"bf16_llava_original", {.parity_case = "llava_original"}, 542},
        StepCase{"bf16_llava_frozen_tower", {.parity_case = "llava_clip_llama", .frozen_tower = true}, 351},
        StepCase{"bf16_llava_lora", {.parity_case = "llava_clip_llama", .lora = nn::LoraSettings{.rank = 4}}, 503},
        StepCase{"bf16_llava_lora_nf4",
                 {.parity_case = "llava_clip_llama",
                  .lora = nn::LoraSettings{.rank = 4, .modules_to_save = {"multi_modal_projector"}},
                  .quantization = nn::Quantization::kNf4},
                 1029},
        StepCase{"bf16_nanovlm_tiles", {.parity_case = "nanovlm_tiles"}, 501},
        StepCase{"fp32_nanovlm_tiles", {.parity_case = "nanovlm_tiles", .dtype = at::kFloat}, 512},
        StepCase{"bf16_nanovlm_untied_recomputed", {.parity_case = "nanovlm_untied", .recompute = true}, 301},
        StepCase{"bf16_nanovlm_images_first", {.parity_case = "nanovlm_images_first"}, 406},
        StepCase{"bf16_nanovlm_lora", {.parity_case = "nanovlm_tiles", .lora = nn::LoraSettings{.rank = 4}}, 565},
        StepCase{"bf16_nanovlm_frozen_tower", {.parity_case = "nanovlm_tiles", .frozen_tower = true}, 376},
        StepCase{"bf16_nanovlm_lora_nf4",
                 {.parity_case = "nanovlm_tiles",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 1219},
        StepCase{"bf16_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows"}, 776},
        StepCase{"fp32_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows", .dtype = at::kFloat}, 790},
        StepCase{"bf16_qwen2_5_vl_windows_recomputed", {.parity_case = "qwen2_5_vl_windows", .recompute = true}, 926},
        StepCase{"bf16_qwen2_5_vl_frozen_tower", {.parity_case = "qwen2_5_vl_windows", .frozen_tower = true}, 491},
        StepCase{
            "bf16_qwen2_5_vl_lora", {.parity_case = "qwen2_5_vl_windows", .lora = nn::LoraSettings{.rank = 4}}, 851},
        StepCase{"bf16_qwen2_5_vl_lora_nf4",
                 {.parity_case = "qwen2_5_vl_windows",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 1739},
        StepCase{"bf16_qwen2_5_vl_mixed", {.parity_case = "qwen2_5_vl_mixed"}, 780},
        StepCase{"bf16_qwen2_vl_images", {.parity_case = "qwen2_vl_images"}, 331},
        // 5,280 tokens and 1,456 labels: the embedding's gradient takes another path from 3,072 on, and the
        // loss two chunks.
        StepCase{"bf16_large", {.micro_batch_size = 64, .repeats = 16}, 382},
        StepCase{"fp32_large", {.dtype = at::kFloat, .micro_batch_size = 64, .repeats = 16}, 323}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain
