#include "planner/dry_run/protocol.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace vlmtrain::planner {
namespace {

/// Converts to a line of text and back, as between the processes.
template <class T>
T round_trip(const T& value) {
  const std::string line = nlohmann::json(value).dump();
  EXPECT_EQ(line.find('\n'), std::string::npos) << "one line";
  return nlohmann::json::parse(line).get<T>();
}

template <class T>
void expect_same_json(const T& value) {
  EXPECT_EQ(nlohmann::json(round_trip(value)), nlohmann::json(value));
}

data::SampleShape shape() {
  return {.tokens = 1100,
          .label_tokens = 64,
          .image_tokens = 832,
          .num_images = 2,
          .pixel_rows = 13,
          .row = {.height = 512, .width = 384},
          .masks = 2,
          .num_images_with_masks = 1,
          .mask_image_size = 1024};
}

TEST(ProtocolTest, AJobRoundTrips) {
  const Job job{.model = "/models/a folder with \"quotes\" and ü",
                .precision = engine::Precision::kFp16,
                .frozen_parts = {.vision_tower = true, .projector = false, .language_model = true},
                .lora = nn::LoraSettings{.rank = 4, .alpha = 32, .target_modules = {"q_proj", ".*fc[12]"}},
                .quantization = nn::Quantization::kInt8,
                .optimizer = {.adamw = {.beta2 = 0.95},
                              .weight_decay = 0.1,
                              .max_grad_norm = 0.25,
                              .loss_scale = engine::LossScaleSettings{.init_scale = 8, .dynamic = false},
                              .state_dtype = engine::OptimizerStateDtype::k8Bit,
                              .seed = uint64_t{1} << 63},
                .objective = {.tasks = {.num_tasks = 3,
                                        .weights = {1, 2, 0.5},
                                        .measure_gradient_norms = true,
                                        .resolve_gradient_conflicts = true},
                              .masks = engine::TextAndMaskLossWeights{.text = 0.5, .bce = 3, .dice = 4}}};
  const Job received = round_trip(job);
  EXPECT_EQ(received.model, job.model);
  EXPECT_EQ(received.precision, job.precision);
  EXPECT_EQ(received.optimizer.state_dtype, job.optimizer.state_dtype);
  EXPECT_EQ(received.optimizer.adamw.beta2, 0.95);
  EXPECT_EQ(received.optimizer.weight_decay, 0.1);
  EXPECT_EQ(received.optimizer.seed, job.optimizer.seed);
  ASSERT_TRUE(received.optimizer.loss_scale);
  EXPECT_EQ(received.optimizer.loss_scale->init_scale, 8);
  EXPECT_FALSE(received.optimizer.loss_scale->dynamic);
  EXPECT_FALSE(round_trip(Job{}).optimizer.loss_scale);
  EXPECT_TRUE(received.frozen_parts.vision_tower);
  EXPECT_FALSE(received.frozen_parts.projector);
  EXPECT_TRUE(received.frozen_parts.language_model);
  EXPECT_EQ(received.quantization, nn::Quantization::kInt8);
  EXPECT_EQ(received.optimizer.max_grad_norm, 0.25);
  EXPECT_EQ(received.objective.masks, job.objective.masks);
  EXPECT_FALSE(round_trip(Job{}).objective.masks);
  const engine::TaskSettings& tasks = received.objective.tasks;
  EXPECT_EQ(tasks.num_tasks, 3);
  EXPECT_EQ(tasks.weights, job.objective.tasks.weights);
  EXPECT_TRUE(tasks.measure_gradient_norms);
  EXPECT_TRUE(tasks.resolve_gradient_conflicts);
  ASSERT_TRUE(received.lora);
  EXPECT_EQ(received.lora->rank, 4);
  EXPECT_EQ(received.lora->alpha, 32);
  EXPECT_EQ(received.lora->target_modules, job.lora->target_modules);
  EXPECT_FALSE(round_trip(Job{}).lora);
  EXPECT_EQ(round_trip(Job{}).precision, engine::Precision::kBf16);
}

TEST(ProtocolTest, PathsOfAnyBytesRoundTrip) {
  std::string all_bytes;
  for (int byte = 1; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  Job job;
  job.model = "/models/caf\xE9/" + all_bytes;
  job.lora.emplace().adapter = "/adapters/\xFF\x80" + all_bytes;
  const Job received = round_trip(job);
  EXPECT_EQ(received.model, job.model);
  ASSERT_TRUE(received.lora);
  EXPECT_EQ(received.lora->adapter, job.lora->adapter);
}

TEST(ProtocolTest, ARequestRoundTrips) {
  DryRunRequest request{.step_config = {.micro_batch_size = 6,
                                        .recompute = {.vision = 3, .language = 7},
                                        .vision_tiles_per_pass = 5,
                                        .loss_chunk_rows = 128,
                                        .expandable_segments = false,
                                        .copies_ahead = false},
                        .steps = {{{shape(), 4}, {{.tokens = 9, .label_tokens = 2}, 2}}, {}},
                        .with_costs = true,
                        .with_detail = false,
                        .with_timeline = true};
  const DryRunRequest received = round_trip(request);
  EXPECT_EQ(received.step_config, request.step_config);
  ASSERT_EQ(received.steps.size(), 2U);
  ASSERT_EQ(received.steps[0].size(), 2U);
  EXPECT_EQ(received.steps[0][0].shape, shape());
  EXPECT_EQ(received.steps[0][0].count, 4);
  EXPECT_EQ(received.steps[0][1].shape, request.steps[0][1].shape);
  EXPECT_EQ(received.steps[0][1].count, 2);
  EXPECT_TRUE(received.steps[1].empty());
  EXPECT_TRUE(received.with_costs);
  EXPECT_FALSE(received.with_detail);
  EXPECT_TRUE(received.with_timeline);
}

TEST(ProtocolTest, AResultRoundTrips) {
  DryRunResult result;
  result.steps = {{1'000'000'000'007, 1'000'000'000'009, 11}, {3, 5}};
  result.num_allocation_retries = 2;
  result.seconds = 0.1;  // has no exact decimal representation
  result.costs = StepCosts{.total = {1e15, 4e14, 2e14, 3e12, 9'000, 1.0 / 3.0},
                           .passes_seconds = 0.3,
                           .link = {.copies = 0.7, .in_place = 0.9},
                           .vision_blocks_forward = {1, 21, 2, 3, 4, 5},
                           .language_blocks_forward = {6, 22, 7, 8, 9, 10},
                           .language_attention_forward = {16, 23, 17, 18, 19, 20},
                           .optimizer = {11, 24, 12, 13, 14, 15}};
  DryRunDetail detail{.peak = {.event_index = 17,
                               .allocated_bytes = 36,
                               .bytes_by_component = {0, 1, 2, 3, 4, 5, 6, 7, 8},
                               .tag = {memory::Component::kLanguage, 11},
                               .is_backward = true},
                      .num_vision_blocks = 12,
                      .num_language_blocks = 30,
                      .num_parameters = 256'000'000,
                      .num_trainable_parameters = 163'000'000,
                      .host_table_bytes = 1,
                      .host_state_bytes = 20,
                      .host_block_bytes = 300,
                      .host_gradient_bytes = 4000,
                      .timeline = {}};
  detail.timeline.push_back({{1, 2, 3, 4, 5, 6, 7, 8, 9}, 99, {memory::Component::kVision, -1}, true});
  result.detail = detail;

  const DryRunResult received = round_trip(result);
  ASSERT_EQ(received.steps.size(), 2U);
  EXPECT_EQ(received.steps[0].allocated_bytes, 1'000'000'000'007);
  EXPECT_EQ(received.steps[0].reserved_bytes, 1'000'000'000'009);
  EXPECT_EQ(received.steps[0].host_activation_bytes, 11);
  EXPECT_EQ(received.num_allocation_retries, 2);
  EXPECT_EQ(received.seconds, 0.1);
  ASSERT_TRUE(received.costs && received.detail);
  EXPECT_EQ(received.costs->total.seconds, 1.0 / 3.0);
  EXPECT_EQ(received.costs->passes_seconds, 0.3);
  EXPECT_EQ(received.costs->link.copies, 0.7);
  EXPECT_EQ(received.costs->link.in_place, 0.9);
  EXPECT_EQ(received.detail->host_bytes(), 4321);
  EXPECT_EQ(received.costs->optimizer.num_kernel_launches, 14);
  EXPECT_EQ(received.costs->language_attention_forward.num_kernel_launches, 19);
  EXPECT_EQ(received.detail->peak.bytes_by_component, detail.peak.bytes_by_component);
  EXPECT_EQ(received.detail->peak.tag, detail.peak.tag);
  EXPECT_TRUE(received.detail->peak.is_backward);
  ASSERT_EQ(received.detail->timeline.size(), 1U);
  EXPECT_EQ(received.detail->timeline[0].bytes_by_component, detail.timeline[0].bytes_by_component);
  EXPECT_EQ(received.detail->timeline[0].tag, detail.timeline[0].tag);
  EXPECT_EQ(received.detail->timeline[0].reserved_bytes, 99);
  expect_same_json(result);
}

TEST(ProtocolTest, OptionalPartsStayEmpty) {
  DryRunResult result;
  result.ran_out_of_memory = true;
  const DryRunResult received = round_trip(result);
  EXPECT_TRUE(received.ran_out_of_memory);
  EXPECT_FALSE(received.costs);
  EXPECT_FALSE(received.detail);
  EXPECT_TRUE(received.steps.empty());
}

TEST(DryRunResultTest, PeaksAreTheMaximaOverTheSteps) {
  DryRunResult result;
  result.steps = {{10, 50}, {30, 40}, {20, 20}};
  EXPECT_EQ(result.compute_max_peaks().allocated_bytes, 30);
  EXPECT_EQ(result.compute_max_peaks().reserved_bytes, 50);
  EXPECT_EQ(DryRunResult{}.compute_max_peaks().reserved_bytes, 0);
}

}  // namespace
}  // namespace vlmtrain::planner
