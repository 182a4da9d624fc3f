#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <tuple>

#include "engine/host_allocations.h"
#include "virtual_gpu/small_run.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/allocation_trace.h"

namespace vlmtrain {
namespace {

struct StepCase {
  std::string name;
  SmallRunSettings settings;
  uint64_t max_launches;  ///< per step, on any architecture
};

void PrintTo(const StepCase& step_case, std::ostream* out) {
  *out << step_case.name;
}

class TrainingStepTest : public testing::TestWithParam<StepCase> {
 protected:
  /// Runs a step and returns its counters.
  static vgpu::GpuCounters step(SmallRun& run) {
    virtual_gpu().reset();
    run.step();
    return counters();
  }

  /// Returns what must be the same in every step and run. REQUIRES: `result` is of the last step.
  static auto trace(const vgpu::GpuCounters& result) {
    return std::tuple(launches_by_kernel(), products(), result.host_to_device_pinned.num_calls,
                      result.host_to_device_pinned.bytes, result.device_to_device.num_calls,
                      result.device_to_device.bytes, result.num_memsets);
  }

  /// Returns the launches that join and split masters without the custom kernel.
  static uint64_t count_master_launches(const SmallRun& run) {
    constexpr uint64_t kLaunchesPerTensor = 11;
    uint64_t launches = 0;
    for (const auto& parameter : run.model().parameters().all()) {
      const bool is_split = parameter.tensor.requires_grad() && !parameter.is_adapter && parameter.elements() >= 4096 &&
                            parameter.tensor.scalar_type() == at::kBFloat16 &&
                            !kernels::is_available(kernels::Kernel::kAdamW, parameter.tensor);
      launches += is_split ? kLaunchesPerTensor : 0;
    }
    return launches;
  }

  static void expect_accepted_launches(const vgpu::GpuCounters& result, const SmallRun& run) {
    EXPECT_GT(result.num_launches, 0U);
    EXPECT_LE(result.num_launches, GetParam().max_launches + count_master_launches(run));
    EXPECT_EQ(result.num_rejected_launches, 0U);
    EXPECT_GT(result.num_matmuls, 0U);
    EXPECT_EQ(unmodeled_calls(), (std::map<std::string, uint64_t>{}));
  }

  static void expect_no_synchronization(const vgpu::GpuCounters& result) {
    EXPECT_EQ(result.device_to_host_pinned.num_calls + result.device_to_host_pageable.num_calls, 0U);
    EXPECT_EQ(result.host_to_device_pageable.num_calls, 0U);
    EXPECT_EQ(result.num_stream_synchronizations, 0U);
    EXPECT_EQ(result.num_event_synchronizations, 0U);
    EXPECT_EQ(result.num_device_synchronizations, 0U);
    EXPECT_EQ(result.num_blocking_copies, 0U);
  }

  static void expect_prefetched_micro_batches(const vgpu::GpuCounters& result, int64_t num_micro_batches) {
    const auto num_prefetched = static_cast<uint64_t>(num_micro_batches - 1);
    EXPECT_EQ(result.num_stream_waits, 2 * num_prefetched)
        << "of the copies for the computation, and of the computation for them";
    EXPECT_EQ(result.num_early_side_stream_copies, 0U);
    EXPECT_EQ(result.side_stream_copies.num_calls > 0, num_prefetched > 0);
    EXPECT_LT(result.side_stream_copies.bytes, result.host_to_device_pinned.bytes) << "the first is not copied ahead";
  }

  static void expect_no_driver_memory(const vgpu::GpuCounters& result) {
    EXPECT_EQ(result.num_allocations, 0U);
    EXPECT_EQ(result.num_frees, 0U);
    EXPECT_EQ(result.num_host_allocations, 0U);
  }

  static void expect_update_without_allocations(SmallRun& run) {
    const memory::AllocationTrace trace(at::Device(at::kCUDA, 0));
    const auto update = run.prepare();
    const size_t events = trace.events().size();
    EXPECT_GT(events, 0U);
    const HostAllocations on_host;
    run.apply(update);
    EXPECT_EQ(on_host.count(), 0);
    EXPECT_EQ(trace.events().size(), events) << "memory was allocated or freed";
  }

  static void expect_asynchronous_copy(const engine::StepResult& result) {
    virtual_gpu().reset();
    engine::AsyncScalarCopy scalars(result.scalars);
    const auto after_queueing = counters();
    EXPECT_EQ(after_queueing.device_to_host_pinned.num_calls, 1U);
    EXPECT_EQ(after_queueing.device_to_host_pageable.num_calls, 0U);
    EXPECT_EQ(after_queueing.num_stream_synchronizations + after_queueing.num_event_synchronizations +
                  after_queueing.num_device_synchronizations,
              0U);
    scalars.read();
    const auto after_reading = counters();
    EXPECT_EQ(after_reading.num_event_synchronizations, 1U);
    EXPECT_EQ(after_reading.num_stream_synchronizations + after_reading.num_device_synchronizations, 0U);
  }
};

/// All contracts of a step on one run, because building the model takes longer than a step.
TEST_P(TrainingStepTest, LaunchesCopiesAndAllocates) {
  SmallRun run(GetParam().settings);
  const auto first = step(run);
  const auto expected = trace(first);
  expect_accepted_launches(first, run);
  RecordProperty("launches", static_cast<int>(first.num_launches));

  const auto second = step(run);
  EXPECT_EQ(trace(second), expected);
  expect_accepted_launches(second, run);
  expect_no_synchronization(second);
  expect_prefetched_micro_batches(second, run.num_micro_batches());

  // The allocator's caches are full after two steps.
  const auto third = step(run);
  expect_accepted_launches(third, run);
  expect_no_synchronization(third);
  expect_no_driver_memory(third);

  for (int i = 0; i < 2; ++i) expect_update_without_allocations(run);
  expect_asynchronous_copy(run.step());

  SmallRun another(GetParam().settings);
  EXPECT_EQ(trace(step(another)), expected);
}

INSTANTIATE_TEST_SUITE_P(
    , TrainingStepTest,
    testing::Values(
        StepCase{"bf16", {}, 601}, StepCase{"fp32", {.dtype = at::kFloat}, 487},
        StepCase{"bf16_recomputed", {.recompute = true}, 685},
        StepCase{"fp32_recomputed", {.dtype = at::kFloat, .recompute = true}, 579},
        StepCase{"bf16_recomputed_but_for_attention", {.recompute = true, .keep_attention = true}, 681},
        StepCase{
            "fp32_recomputed_but_for_attention", {.dtype = at::kFloat, .recompute = true, .keep_attention = true}, 575},
        StepCase{"bf16_frozen_tower", {.frozen_tower = true}, 377},
        StepCase{"bf16_tasks", {.tasks = {.num_tasks = 2}}, 541},
        StepCase{
            "bf16_gradnorm", {.tasks = {.num_tasks = 2, .weights = {0.5, 1.5}, .measure_gradient_norms = true}}, 556},
        StepCase{"bf16_pcgrad", {.repeats = 2, .tasks = {.num_tasks = 3, .resolve_gradient_conflicts = true}}, 1363},
        StepCase{"bf16_one_micro_batch", {.micro_batch_size = 4}, 341},
        StepCase{"bf16_untied_tiles", {.parity_case = "full_heads_untied_tiles", .repeats = 4}, 594},
        StepCase{
            "fp32_untied_tiles", {.parity_case = "full_heads_untied_tiles", .dtype = at::kFloat, .repeats = 4}, 470},
        StepCase{"bf16_lora", {.lora = nn::LoraSettings{.rank = 4}}, 665},
        StepCase{"bf16_lora_dropout_recomputed",
                 {.recompute = true, .lora = nn::LoraSettings{.rank = 4, .dropout = 0.1}},
                 1222},
        StepCase{"fp32_lora_text",
                 {.dtype = at::kFloat, .lora = nn::LoraSettings{.rank = 4, .target_modules = {".*text_model.*"}}},
                 405},
        StepCase{"bf16_dora", {.lora = nn::LoraSettings{.rank = 4, .use_dora = true}}, 1371},
        StepCase{"bf16_dora_dropout", {.lora = nn::LoraSettings{.rank = 4, .dropout = 0.1, .use_dora = true}}, 2001},
        StepCase{"bf16_lora_nf4", {.lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kNf4}, 816},
        StepCase{"bf16_dora_nf4_recomputed",
                 {.recompute = true,
                  .lora = nn::LoraSettings{.rank = 4, .use_dora = true},
                  .quantization = nn::Quantization::kNf4},
                 3214},
        StepCase{"fp32_lora_int8",
                 {.dtype = at::kFloat, .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kInt8},
                 765},
        StepCase{"bf16_muon", {.optimizer = engine::OptimizerKind::kMuon}, 770},
        StepCase{"fp32_muon", {.dtype = at::kFloat, .optimizer = engine::OptimizerKind::kMuon}, 752},
        StepCase{"fp16", {.dtype = at::kHalf}, 540},
        StepCase{"fp16_recomputed", {.dtype = at::kHalf, .recompute = true}, 628},
        StepCase{"fp16_lora", {.dtype = at::kHalf, .lora = nn::LoraSettings{.rank = 4}}, 608},
        StepCase{"fp16_lora_nf4",
                 {.dtype = at::kHalf, .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kNf4},
                 822},
        StepCase{"fp16_llava_clip_mistral", {.parity_case = "llava_clip_mistral", .dtype = at::kHalf}, 1179},
        StepCase{"fp16_nanovlm_tiles", {.parity_case = "nanovlm_tiles", .dtype = at::kHalf}, 506},
        StepCase{"fp16_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows", .dtype = at::kHalf}, 781},
        StepCase{"fp16_8bit_states", {.dtype = at::kHalf, .states = engine::OptimizerStateDtype::k8Bit}, 586},
        StepCase{"bf16_8bit_states", {.states = engine::OptimizerStateDtype::k8Bit}, 578},
        StepCase{"bf16_bf16_states", {.states = engine::OptimizerStateDtype::kBf16}, 558},
        StepCase{"fp32_bf16_states", {.dtype = at::kFloat, .states = engine::OptimizerStateDtype::kBf16}, 511},
        StepCase{"bf16_text_only", {.parity_case = "text_only"}, 283},
        StepCase{"bf16_llava_clip_llama", {.parity_case = "llava_clip_llama"}, 492},
        StepCase{"bf16_llava_clip_llama_recomputed", {.parity_case = "llava_clip_llama", .recompute = true}, 568},
        StepCase{"bf16_llava_siglip_qwen2", {.parity_case = "llava_siglip_qwen2"}, 357},
        StepCase{"bf16_llava_clip_mistral", {.parity_case = "llava_clip_mistral"}, 592},
        StepCase{"fp32_llava_clip_mistral", {.parity_case = "llava_clip_mistral", .dtype = at::kFloat}, 1064},
        StepCase{"bf16_llava_original", {.parity_case = "llava_original"}, 541},
        StepCase{"bf16_llava_frozen_tower", {.parity_case = "llava_clip_llama", .frozen_tower = true}, 350},
        StepCase{"bf16_llava_lora", {.parity_case = "llava_clip_llama", .lora = nn::LoraSettings{.rank = 4}}, 502},
        StepCase{"bf16_llava_lora_nf4",
                 {.parity_case = "llava_clip_llama",
                  .lora = nn::LoraSettings{.rank = 4, .modules_to_save = {"multi_modal_projector"}},
                  .quantization = nn::Quantization::kNf4},
                 621},
        StepCase{"bf16_nanovlm_tiles", {.parity_case = "nanovlm_tiles"}, 500},
        StepCase{"fp32_nanovlm_tiles", {.parity_case = "nanovlm_tiles", .dtype = at::kFloat}, 461},
        StepCase{"bf16_nanovlm_untied_recomputed", {.parity_case = "nanovlm_untied", .recompute = true}, 300},
        StepCase{"bf16_nanovlm_images_first", {.parity_case = "nanovlm_images_first"}, 405},
        StepCase{"bf16_nanovlm_lora", {.parity_case = "nanovlm_tiles", .lora = nn::LoraSettings{.rank = 4}}, 564},
        StepCase{"bf16_nanovlm_frozen_tower", {.parity_case = "nanovlm_tiles", .frozen_tower = true}, 375},
        StepCase{"bf16_nanovlm_lora_nf4",
                 {.parity_case = "nanovlm_tiles",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 794},
        StepCase{"bf16_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows"}, 775},
        StepCase{"fp32_qwen2_5_vl_windows", {.parity_case = "qwen2_5_vl_windows", .dtype = at::kFloat}, 720},
        StepCase{"bf16_qwen2_5_vl_windows_recomputed", {.parity_case = "qwen2_5_vl_windows", .recompute = true}, 925},
        StepCase{"bf16_qwen2_5_vl_frozen_tower", {.parity_case = "qwen2_5_vl_windows", .frozen_tower = true}, 490},
        StepCase{
            "bf16_qwen2_5_vl_lora", {.parity_case = "qwen2_5_vl_windows", .lora = nn::LoraSettings{.rank = 4}}, 850},
        StepCase{"bf16_qwen2_5_vl_lora_nf4",
                 {.parity_case = "qwen2_5_vl_windows",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 1143},
        StepCase{"bf16_qwen2_5_vl_mixed", {.parity_case = "qwen2_5_vl_mixed"}, 779},
        StepCase{"bf16_qwen2_vl_images", {.parity_case = "qwen2_vl_images"}, 330},
        StepCase{"bf16_internvl3_tiles", {.parity_case = "internvl3_tiles"}, 578},
        StepCase{"fp32_internvl3_tiles", {.parity_case = "internvl3_tiles", .dtype = at::kFloat}, 529},
        StepCase{"fp16_internvl3_tiles", {.parity_case = "internvl3_tiles", .dtype = at::kHalf}, 586},
        StepCase{"bf16_internvl3_tiles_recomputed", {.parity_case = "internvl3_tiles", .recompute = true}, 646},
        StepCase{"bf16_internvl3_frozen_tower", {.parity_case = "internvl3_tiles", .frozen_tower = true}, 352},
        StepCase{"bf16_internvl3_5_mixed", {.parity_case = "internvl3_5_mixed"}, 630},
        StepCase{
            "bf16_internvl3_5_lora", {.parity_case = "internvl3_5_mixed", .lora = nn::LoraSettings{.rank = 4}}, 531},
        StepCase{"bf16_internvl3_5_lora_nf4",
                 {.parity_case = "internvl3_5_mixed",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 979},
        StepCase{"bf16_internvl_rms_norm_video", {.parity_case = "internvl_rms_norm_video"}, 348},
        StepCase{"bf16_qwen3_vl_images", {.parity_case = "qwen3_vl_images"}, 972},
        StepCase{"fp32_qwen3_vl_images", {.parity_case = "qwen3_vl_images", .dtype = at::kFloat}, 889},
        StepCase{"fp16_qwen3_vl_images", {.parity_case = "qwen3_vl_images", .dtype = at::kHalf}, 980},
        StepCase{"bf16_qwen3_vl_images_recomputed", {.parity_case = "qwen3_vl_images", .recompute = true}, 1146},
        StepCase{"bf16_qwen3_vl_frozen_tower", {.parity_case = "qwen3_vl_images", .frozen_tower = true}, 646},
        StepCase{"bf16_qwen3_vl_lora", {.parity_case = "qwen3_vl_images", .lora = nn::LoraSettings{.rank = 4}}, 844},
        StepCase{"bf16_qwen3_vl_lora_nf4",
                 {.parity_case = "qwen3_vl_images",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 1696},
        StepCase{"bf16_qwen3_vl_mixed", {.parity_case = "qwen3_vl_mixed"}, 1094},
        StepCase{"bf16_qwen3_5_images", {.parity_case = "qwen3_5_images"}, 2040},
        StepCase{"fp32_qwen3_5_images", {.parity_case = "qwen3_5_images", .dtype = at::kFloat}, 1880},
        StepCase{"fp16_qwen3_5_images", {.parity_case = "qwen3_5_images", .dtype = at::kHalf}, 2050},
        StepCase{"bf16_qwen3_5_images_recomputed", {.parity_case = "qwen3_5_images", .recompute = true}, 2550},
        StepCase{"bf16_qwen3_5_lora", {.parity_case = "qwen3_5_images", .lora = nn::LoraSettings{.rank = 4}}, 1770},
        StepCase{"bf16_qwen3_5_lora_nf4",
                 {.parity_case = "qwen3_5_images",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 2280},
        StepCase{"bf16_qwen3_5_video", {.parity_case = "qwen3_5_video"}, 660},
        StepCase{"bf16_gemma3_published", {.parity_case = "gemma3_published"}, 1786},
        StepCase{"fp32_gemma3_published", {.parity_case = "gemma3_published", .dtype = at::kFloat}, 1597},
        StepCase{"fp16_gemma3_published", {.parity_case = "gemma3_published", .dtype = at::kHalf}, 1794},
        StepCase{"bf16_gemma3_published_recomputed", {.parity_case = "gemma3_published", .recompute = true}, 2336},
        StepCase{"bf16_gemma3_frozen_tower", {.parity_case = "gemma3_published", .frozen_tower = true}, 1638},
        StepCase{"bf16_gemma3_lora", {.parity_case = "gemma3_published", .lora = nn::LoraSettings{.rank = 4}}, 1672},
        StepCase{"bf16_gemma3_lora_nf4",
                 {.parity_case = "gemma3_published",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 2552},
        StepCase{"bf16_gemma3_saved", {.parity_case = "gemma3_saved"}, 608},
        StepCase{"bf16_gemma4_tower", {.parity_case = "gemma4_tower"}, 637},
        StepCase{"fp32_gemma4_tower", {.parity_case = "gemma4_tower", .dtype = at::kFloat}, 599},
        StepCase{"fp16_gemma4_tower", {.parity_case = "gemma4_tower", .dtype = at::kHalf}, 642},
        StepCase{"bf16_gemma4_tower_recomputed", {.parity_case = "gemma4_tower", .recompute = true}, 782},
        StepCase{"bf16_gemma4_lora_nf4",
                 {.parity_case = "gemma4_tower",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 942},
        StepCase{"bf16_gemma4_per_layer", {.parity_case = "gemma4_per_layer"}, 693},
        StepCase{"bf16_gemma4_per_layer_recomputed", {.parity_case = "gemma4_per_layer", .recompute = true}, 846},
        StepCase{"bf16_gemma4_per_layer_lora_nf4",
                 {.parity_case = "gemma4_per_layer",
                  .lora = nn::LoraSettings{.rank = 4},
                  .quantization = nn::Quantization::kNf4},
                 1151},
        StepCase{"bf16_gemma4_unified_video", {.parity_case = "gemma4_unified_video"}, 326},
        StepCase{"bf16_gemma3_words", {.parity_case = "gemma3_words"}, 276},
        StepCase{"bf16_qwen3_text", {.parity_case = "qwen3_text"}, 300},
        StepCase{
            "bf16_qwen3_text_lora_nf4",
            {.parity_case = "qwen3_text", .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kNf4},
            600},
        StepCase{"bf16_gemma3_text", {.parity_case = "gemma3_text"}, 550},
        StepCase{"bf16_smollm3_text_recomputed", {.parity_case = "smollm3_text", .recompute = true}, 192},
        // 5,280 tokens and 1,456 labels: the embedding's gradient uses another algorithm from 3,072
        // tokens on, and the loss two chunks.
        StepCase{"bf16_large", {.micro_batch_size = 64, .repeats = 16}, 381},
        StepCase{"fp32_large", {.dtype = at::kFloat, .micro_batch_size = 64, .repeats = 16}, 264}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain
