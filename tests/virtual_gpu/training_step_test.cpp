#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <tuple>

#include "virtual_gpu/card.h"
#include "virtual_gpu/small_run.h"
#include "vlmtrain/engine/async_scalars.h"

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
        StepCase{"bf16", {}, 597}, StepCase{"fp32", {.dtype = at::kFloat}, 541},
        StepCase{"bf16_recomputed", {.recompute = true}, 681},
        StepCase{"fp32_recomputed", {.dtype = at::kFloat, .recompute = true}, 633},
        StepCase{"bf16_frozen_tower", {.frozen_tower = true}, 373},
        StepCase{"bf16_one_micro_batch", {.micro_batch_size = 4}, 337},
        StepCase{"bf16_untied_tiles", {.parity_case = "full_heads_untied_tiles", .repeats = 4}, 590},
        StepCase{
            "fp32_untied_tiles", {.parity_case = "full_heads_untied_tiles", .dtype = at::kFloat, .repeats = 4}, 525},
        StepCase{"bf16_lora", {.lora = nn::LoraSettings{.rank = 4}}, 661},
        StepCase{"bf16_lora_dropout_recomputed",
                 {.recompute = true, .lora = nn::LoraSettings{.rank = 4, .dropout = 0.1}},
                 899},
        StepCase{"fp32_lora_text",
                 {.dtype = at::kFloat, .lora = nn::LoraSettings{.rank = 4, .target_modules = {".*text_model.*"}}},
                 427},
        StepCase{"bf16_dora", {.lora = nn::LoraSettings{.rank = 4, .use_dora = true}}, 1367},
        StepCase{"bf16_dora_dropout", {.lora = nn::LoraSettings{.rank = 4, .dropout = 0.1, .use_dora = true}}, 1697},
        StepCase{"bf16_lora_nf4", {.lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kNf4}, 1312},
        StepCase{"bf16_dora_nf4_recomputed",
                 {.recompute = true,
                  .lora = nn::LoraSettings{.rank = 4, .use_dora = true},
                  .quantization = nn::Quantization::kNf4},
                 3465},
        StepCase{"fp32_lora_int8",
                 {.dtype = at::kFloat, .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kInt8},
                 815},
        StepCase{"bf16_text_only", {.parity_case = "text_only"}, 279},
        StepCase{"bf16_llava_clip_llama", {.parity_case = "llava_clip_llama"}, 488},
        StepCase{"bf16_llava_clip_llama_recomputed", {.parity_case = "llava_clip_llama", .recompute = true}, 564},
        StepCase{"bf16_llava_siglip_qwen2", {.parity_case = "llava_siglip_qwen2"}, 353},
        StepCase{"bf16_llava_clip_mistral", {.parity_case = "llava_clip_mistral"}, 588},
        StepCase{"fp32_llava_clip_mistral", {.parity_case = "llava_clip_mistral", .dtype = at::kFloat}, 1120},
        StepCase{"bf16_llava_original", {.parity_case = "llava_original"}, 537},
        StepCase{"bf16_llava_frozen_tower", {.parity_case = "llava_clip_llama", .frozen_tower = true}, 346},
        StepCase{"bf16_llava_lora", {.parity_case = "llava_clip_llama", .lora = nn::LoraSettings{.rank = 4}}, 498},
        StepCase{"bf16_llava_lora_nf4",
                 {.parity_case = "llava_clip_llama",
                  .lora = nn::LoraSettings{.rank = 4, .modules_to_save = {"multi_modal_projector"}},
                  .quantization = nn::Quantization::kNf4},
                 1024},
        StepCase{"bf16_nanovlm_tiles", {.parity_case = "nanovlm_tiles"}, 496},
        StepCase{"fp32_nanovlm_tiles", {.parity_case = "nanovlm_tiles", .dtype = at::kFloat}, 507},
        StepCase{"bf16_nanovlm_untied_recomputed", {.parity_case = "nanovlm_untied", .recompute = true}, 296},
        StepCase{"bf16_nanovlm_images_first", {.parity_case = "nanovlm_images_first"}, 401},
        StepCase{"bf16_nanovlm_lora", {.parity_case = "nanovlm_tiles", .lora = nn::LoraSettings{.rank = 4}}, 560},
        StepCase{"bf16_nanovlm_frozen_tower", {.parity_case = "nanovlm_tiles", .frozen_tower = true}, 371},
        StepCase{"bf16_nanovlm_lora_nf4",
                 {.parity_case = "nanovlm_tiles",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 1214},
        StepCase{"bf16_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows"}, 771},
        StepCase{"fp32_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows", .dtype = at::kFloat}, 785},
        StepCase{"bf16_qwen2_5_vl_windows_recomputed", {.parity_case = "qwen2_5_vl_windows", .recompute = true}, 921},
        StepCase{"bf16_qwen2_5_vl_frozen_tower", {.parity_case = "qwen2_5_vl_windows", .frozen_tower = true}, 486},
        StepCase{
            "bf16_qwen2_5_vl_lora", {.parity_case = "qwen2_5_vl_windows", .lora = nn::LoraSettings{.rank = 4}}, 846},
        StepCase{"bf16_qwen2_5_vl_lora_nf4",
                 {.parity_case = "qwen2_5_vl_windows",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 1734},
        StepCase{"bf16_qwen2_5_vl_mixed", {.parity_case = "qwen2_5_vl_mixed"}, 775},
        StepCase{"bf16_qwen2_vl_images", {.parity_case = "qwen2_vl_images"}, 326},
        // 5,280 tokens and 1,456 labels: the embedding's gradient takes another path from 3,072 on, and the
        // loss two chunks.
        StepCase{"bf16_large", {.micro_batch_size = 64, .repeats = 16}, 377},
        StepCase{"fp32_large", {.dtype = at::kFloat, .micro_batch_size = 64, .repeats = 16}, 318}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain
