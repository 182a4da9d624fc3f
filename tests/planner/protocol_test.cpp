#include "planner/protocol.h"

#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

/// Through a line of text, as between the processes.
template <class T>
T sent(const T& value) {
  const std::string line = nlohmann::json(value).dump();
  EXPECT_EQ(line.find('\n'), std::string::npos) << "one line";
  return nlohmann::json::parse(line).get<T>();
}

template <class T>
void expect_same_json(const T& value) {
  EXPECT_EQ(nlohmann::json(sent(value)), nlohmann::json(value));
}

data::SampleShape shape() {
  return {.tokens = 1100,
          .label_tokens = 64,
          .image_tokens = 832,
          .images = 2,
          .pixel_rows = 13,
          .row = {.height = 512, .width = 384},
          .masks = 2,
          .mask_pictures = 1,
          .mask_side = 1024};
}

TEST(ProtocolTest, AJobArrivesAsItIs) {
  const Job job{
      .model = "/models/a folder with \"quotes\" and ü",
      .precision = engine::Precision::kFp16,
      .frozen = {.vision_tower = true, .projector = false, .language_model = true},
      .lora = nn::LoraSettings{.rank = 4, .alpha = 32, .target_modules = {"q_proj", ".*fc[12]"}},
      .quantization = nn::Quantization::kInt8,
      .optimizer = {.beta2 = 0.95,
                    .weight_decay = 0.1,
                    .max_grad_norm = 0.25,
                    .loss_scale = engine::LossScaleSettings{.initial = 8, .dynamic = false},
                    .states = engine::OptimizerStates::k8Bit,
                    .seed = uint64_t{1} << 63},
      .objective = {.tasks = {.count = 3, .weights = {1, 2, 0.5}, .gradient_norms = true, .resolve_conflicts = true},
                    .masks = engine::MaskLossWeights{.text = 0.5, .bce = 3, .dice = 4}}};
  const Job arrived = sent(job);
  EXPECT_EQ(arrived.model, job.model);
  EXPECT_EQ(arrived.precision, job.precision);
  EXPECT_EQ(arrived.optimizer.states, job.optimizer.states);
  EXPECT_EQ(arrived.optimizer.beta2, 0.95);
  EXPECT_EQ(arrived.optimizer.weight_decay, 0.1);
  EXPECT_EQ(arrived.optimizer.seed, job.optimizer.seed);
  ASSERT_TRUE(arrived.optimizer.loss_scale);
  EXPECT_EQ(arrived.optimizer.loss_scale->initial, 8);
  EXPECT_FALSE(arrived.optimizer.loss_scale->dynamic);
  EXPECT_FALSE(sent(Job{}).optimizer.loss_scale);
  EXPECT_TRUE(arrived.frozen.vision_tower);
  EXPECT_FALSE(arrived.frozen.projector);
  EXPECT_TRUE(arrived.frozen.language_model);
  EXPECT_EQ(arrived.quantization, nn::Quantization::kInt8);
  EXPECT_EQ(arrived.optimizer.max_grad_norm, 0.25);
  EXPECT_EQ(arrived.objective.masks, job.objective.masks);
  EXPECT_FALSE(sent(Job{}).objective.masks);
  const engine::TaskSettings& tasks = arrived.objective.tasks;
  EXPECT_EQ(tasks.count, 3);
  EXPECT_EQ(tasks.weights, job.objective.tasks.weights);
  EXPECT_TRUE(tasks.gradient_norms);
  EXPECT_TRUE(tasks.resolve_conflicts);
  ASSERT_TRUE(arrived.lora);
  EXPECT_EQ(arrived.lora->rank, 4);
  EXPECT_EQ(arrived.lora->alpha, 32);
  EXPECT_EQ(arrived.lora->target_modules, job.lora->target_modules);
  EXPECT_FALSE(sent(Job{}).lora);
  EXPECT_EQ(sent(Job{}).precision, engine::Precision::kBf16);
}

TEST(ProtocolTest, PathsOfAnyBytesArrive) {
  std::string every;
  for (int byte = 1; byte < 256; ++byte) every += static_cast<char>(byte);
  Job job;
  job.model = "/models/caf\xE9/" + every;
  job.lora.emplace().adapter = "/adapters/\xFF\x80" + every;
  const Job arrived = sent(job);
  EXPECT_EQ(arrived.model, job.model);
  ASSERT_TRUE(arrived.lora);
  EXPECT_EQ(arrived.lora->adapter, job.lora->adapter);
}

TEST(ProtocolTest, ARequestArrivesAsItIs) {
  RehearsalRequest request{.choices = {.micro_batch_size = 6,
                                       .recompute = {.vision = 3, .language = 7},
                                       .vision_tiles_per_pass = 5,
                                       .loss_chunk_rows = 128,
                                       .expandable_segments = false,
                                       .copies_ahead = false},
                           .steps = {{{shape(), 4}, {{.tokens = 9, .label_tokens = 2}, 2}}, {}},
                           .with_costs = true,
                           .with_detail = false,
                           .with_timeline = true};
  const RehearsalRequest arrived = sent(request);
  EXPECT_EQ(arrived.choices, request.choices);
  ASSERT_EQ(arrived.steps.size(), 2U);
  ASSERT_EQ(arrived.steps[0].size(), 2U);
  EXPECT_EQ(arrived.steps[0][0].shape, shape());
  EXPECT_EQ(arrived.steps[0][0].count, 4);
  EXPECT_EQ(arrived.steps[0][1].shape, request.steps[0][1].shape);
  EXPECT_EQ(arrived.steps[0][1].count, 2);
  EXPECT_TRUE(arrived.steps[1].empty());
  EXPECT_TRUE(arrived.with_costs);
  EXPECT_FALSE(arrived.with_detail);
  EXPECT_TRUE(arrived.with_timeline);
}

TEST(ProtocolTest, AnOutcomeArrivesAsItIs) {
  Outcome outcome;
  outcome.steps = {{1'000'000'000'007, 1'000'000'000'009}, {3, 5}};
  outcome.allocation_retries = 2;
  outcome.seconds = 0.1;  // has no exact decimal representation
  outcome.costs = StepCosts{.total = {1e15, 2e14, 3e12, 9'000, 1.0 / 3.0},
                            .vision_blocks_forward = {1, 2, 3, 4, 5},
                            .language_blocks_forward = {6, 7, 8, 9, 10},
                            .language_attention_forward = {16, 17, 18, 19, 20},
                            .optimizer = {11, 12, 13, 14, 15}};
  RehearsalDetail detail{.peak = {.event = 17,
                                  .allocated_bytes = 36,
                                  .by_component = {0, 1, 2, 3, 4, 5, 6, 7, 8},
                                  .place = {memory::Component::kLanguage, 11},
                                  .backward = true},
                         .vision_blocks = 12,
                         .language_blocks = 30,
                         .total_elements = 256'000'000,
                         .trained_elements = 163'000'000,
                         .timeline = {}};
  detail.timeline.push_back({{1, 2, 3, 4, 5, 6, 7, 8, 9}, 99, {memory::Component::kVision, -1}, true});
  outcome.detail = detail;

  const Outcome arrived = sent(outcome);
  ASSERT_EQ(arrived.steps.size(), 2U);
  EXPECT_EQ(arrived.steps[0].allocated_bytes, 1'000'000'000'007);
  EXPECT_EQ(arrived.steps[0].reserved_bytes, 1'000'000'000'009);
  EXPECT_EQ(arrived.allocation_retries, 2);
  EXPECT_EQ(arrived.seconds, 0.1);
  ASSERT_TRUE(arrived.costs && arrived.detail);
  EXPECT_EQ(arrived.costs->total.seconds, 1.0 / 3.0);
  EXPECT_EQ(arrived.costs->optimizer.launches, 14);
  EXPECT_EQ(arrived.costs->language_attention_forward.launches, 19);
  EXPECT_EQ(arrived.detail->peak.by_component, detail.peak.by_component);
  EXPECT_EQ(arrived.detail->peak.place, detail.peak.place);
  EXPECT_TRUE(arrived.detail->peak.backward);
  ASSERT_EQ(arrived.detail->timeline.size(), 1U);
  EXPECT_EQ(arrived.detail->timeline[0].by_component, detail.timeline[0].by_component);
  EXPECT_EQ(arrived.detail->timeline[0].place, detail.timeline[0].place);
  EXPECT_EQ(arrived.detail->timeline[0].reserved_bytes, 99);
  expect_same_json(outcome);
}

TEST(ProtocolTest, WhatWasNotAskedForStaysAway) {
  Outcome outcome;
  outcome.out_of_memory = true;
  const Outcome arrived = sent(outcome);
  EXPECT_TRUE(arrived.out_of_memory);
  EXPECT_FALSE(arrived.costs);
  EXPECT_FALSE(arrived.detail);
  EXPECT_TRUE(arrived.steps.empty());
}

TEST(OutcomeTest, PeaksAreTheMostOfAnyStepEachForItself) {
  Outcome outcome;
  outcome.steps = {{10, 50}, {30, 40}, {20, 20}};
  EXPECT_EQ(outcome.peaks().allocated_bytes, 30);
  EXPECT_EQ(outcome.peaks().reserved_bytes, 50);
  EXPECT_EQ(Outcome{}.peaks().reserved_bytes, 0);
}

}  // namespace
}  // namespace vlmtrain::planner
