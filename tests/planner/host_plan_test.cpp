#include "vlmtrain/planner/host_plan.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "planner/host_rehearsal.h"
#include "planner/rehearsal.h"
#include "planner/rehearsed_run.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/memory/fault_injection.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::planner {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// What a step of these samples really takes on the CPU, counted allocation by allocation. Values are not initialised,
/// as in all rehearsals.
int64_t counted_on_the_cpu(const Job& job, const Choices& choices, const std::vector<SampleGroup>& samples) {
  memory::FaultInjection allocations;
  allocations.arm({});
  RehearsedRun run(job, at::kCPU);
  run.step(samples, layout_of(choices, samples));
  return allocations.peak_bytes();
}

int64_t rehearsed(const Job& job, const Choices& choices, const std::vector<SampleGroup>& samples) {
  return HostRehearsal(job).step(choices, samples).peaks().allocated_bytes;
}

/// How much more was rehearsed than was counted, as a share.
double error_of(const Job& job, const Choices& choices, const std::vector<SampleGroup>& samples) {
  const auto counted = static_cast<double>(counted_on_the_cpu(job, choices, samples));
  return static_cast<double>(rehearsed(job, choices, samples)) / counted - 1;
}

/// A job for the checkpoint of a parity case, and samples of the case's shapes.
struct CaseJob {
  explicit CaseJob(const std::string& name) {
    const parity::Case reference(name);
    job.model = reference.checkpoint();
    const auto processor = reference.load_processor();
    const io::RecordList records(reference.records());
    for (int64_t i = 0; i < records.size(); ++i) {
      add_sample(samples, data::shape_of(data::make_sample(*processor, records[i], i)));
    }
  }

  Job job;
  std::vector<SampleGroup> samples;
};

class HostRehearsalOfCase : public testing::TestWithParam<std::string> {};

/// The models are so small that tables and single buffers are a good part of the whole, and what kernels take beside
/// their results differs with the processor's instructions.
constexpr double kTooLittle = -0.1;
constexpr double kTooMuch = 0.1;
const auto kIsTrue = testing::AllOf(testing::Gt(kTooLittle), testing::Lt(kTooMuch));

TEST_P(HostRehearsalOfCase, TakesWhatAnEvaluationTakesOnTheCpu) {
  // There are neither moments nor gradients here, and so buffers are a larger part: oneDNN's, too, for weights that it
  // takes side by side.
  const auto kIsNear = testing::AllOf(testing::Gt(-0.2), testing::Lt(0.3));
  const CaseJob of_case(GetParam());
  for (const int64_t new_tokens : {0, 20}) {
    const EvaluatedBatch batch{.samples = of_case.samples, .layout = {}, .max_new_tokens = new_tokens};
    memory::FaultInjection allocations;
    allocations.arm({});
    const RehearsedRun run(of_case.job, at::kCPU, /*trains=*/false);
    run.evaluate(batch);
    const auto counted = static_cast<double>(allocations.peak_bytes());
    HostRehearsal rehearsal(of_case.job, HostRehearsal::Detail::kNone, /*trains=*/false);
    EXPECT_THAT(static_cast<double>(rehearsal.evaluate(batch).allocated_bytes) / counted - 1, kIsNear) << new_tokens;
  }
}

TEST_P(HostRehearsalOfCase, TakesWhatTheCpuTakes) {
  CaseJob of_case(GetParam());
  for (const auto precision : {engine::Precision::kFp32, engine::Precision::kBf16}) {
    of_case.job = with_precision(of_case.job, precision);
    for (const int64_t blocks : {0, 100}) {
      Choices choices{.micro_batch_size = 8, .recompute = {blocks, blocks}};
      EXPECT_THAT(error_of(of_case.job, choices, of_case.samples), kIsTrue)
          << engine::name_of(precision) << ", " << blocks << " blocks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HostRehearsalOfCase,
                         testing::Values("mixed_batch", "llava_clip_llama", "llava_clip_mistral", "nanovlm_tiles",
                                         "qwen2_vl_images", "qwen2_5_vl_mixed", "qwen3_vl_mixed", "internvl3_5_mixed",
                                         "gemma3_published", "text_only"));

TEST(HostRehearsalTest, TakesWhatTheCpuTakesWithAdaptersAndCompressedMoments) {
  CaseJob of_case("mixed_batch");
  const Choices choices = micro_batches_of(4);
  of_case.job.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(error_of(of_case.job, choices, of_case.samples), kIsTrue);
  of_case.job.quantization = nn::Quantization::kNf4;
  EXPECT_THAT(error_of(of_case.job, choices, of_case.samples), kIsTrue);
  of_case.job.lora.reset();
  of_case.job.quantization = nn::Quantization::kNone;
  for (const auto states : {engine::OptimizerStates::kBf16, engine::OptimizerStates::k8Bit}) {
    of_case.job.optimizer.states = states;
    EXPECT_THAT(error_of(of_case.job, choices, of_case.samples), kIsTrue);
  }
}

/// SmolVLM-256M with samples of up to 17 tiles, which no test could really train.
class HostPlanTest : public testing::Test {
 protected:
  HostPlanRequest request(double gigabytes, int64_t global_batch = 4) const {
    HostPlanRequest request;
    request.model = "smolvlm-256m";
    request.job = model_.job();
    request.room = {.bytes = static_cast<int64_t>(gigabytes * 1e9), .bound = "a test"};
    request.needs = {.process_bytes = 200'000'000, .sample_bytes = 13'000'000, .samples_of_step = global_batch};
    request.workload = {.candidates = {{.shapes = {shape_}, .first_id = "largest"}}, .global_batch_size = global_batch};
    request.largest_micro_batch = global_batch;
    return request;
  }

  static std::vector<std::string> texts_of(const HostPlan& plan) {
    std::vector<std::string> texts;
    for (const auto& suggestion : plan.suggestions) texts.push_back(suggestion.text());
    return texts;
  }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape shape_ = model_.shape({.images = 1, .image_width = 1024, .image_height = 1024});
};

TEST_F(HostPlanTest, LessMemoryMeansSmallerMicroBatchesThenRecomputationThenPasses) {
  int64_t micro_batch = 4;
  int64_t recomputed = 0;
  for (const double gigabytes : {200, 100, 40, 30, 20, 14, 10, 8, 7}) {
    SCOPED_TRACE(gigabytes);
    const HostPlan plan = make_host_plan(request(gigabytes));
    ASSERT_TRUE(plan.fits);
    EXPECT_LE(plan.needed_bytes(), plan.limit.tensor_bytes);
    EXPECT_LE(plan.total_bytes() + plan.limit.margin_bytes, plan.limit.room.bytes);
    EXPECT_LE(plan.choices.micro_batch_size, micro_batch);
    micro_batch = plan.choices.micro_batch_size;
    const int64_t blocks = plan.choices.recompute.vision + plan.choices.recompute.language;
    EXPECT_GE(blocks, recomputed);
    recomputed = blocks;
    EXPECT_TRUE(micro_batch == 1 || blocks == 0);
    EXPECT_EQ(plan.worst.first_id, "largest");
    EXPECT_GT(plan.detail.peak.by_component[static_cast<size_t>(memory::Component::kWeights)], 0);
  }
  EXPECT_EQ(micro_batch, 1);
  EXPECT_GT(recomputed, 0);
}

TEST_F(HostPlanTest, NoBlockIsRecomputedThatNeedNotBe) {
  const HostPlan plan = make_host_plan(request(9));
  ASSERT_TRUE(plan.fits);
  Choices one_less = plan.choices;
  ASSERT_GT(one_less.recompute.vision, 0);
  (one_less.recompute.language > 0 ? one_less.recompute.language : one_less.recompute.vision) -= 1;
  EXPECT_GT(host_peak_bytes(model_.job(), plan.workload, one_less), plan.limit.tensor_bytes);
}

TEST_F(HostPlanTest, ARehearsalTakesNoMemory) {
  const int64_t before = memory::host_peak_bytes();
  const HostPlan plan = make_host_plan(request(200));
  EXPECT_GT(plan.peak_bytes, 20'000'000'000);
  EXPECT_LT(memory::host_peak_bytes() - before, 500'000'000);
}

TEST_F(HostPlanTest, WhatIsFixedStays) {
  HostPlanRequest fixed = request(40);
  fixed.fixed = {.micro_batch_size = 2, .recompute = {"3+5"}, .vision_tiles_per_pass = 4, .loss_chunk_rows = 77};
  const HostPlan plan = make_host_plan(fixed);
  ASSERT_TRUE(plan.fits);
  EXPECT_EQ(plan.choices.micro_batch_size, 2);
  EXPECT_EQ(plan.choices.recompute, (models::RecomputeBlocks{3, 5}));
  EXPECT_EQ(plan.choices.vision_tiles_per_pass, 4);
  EXPECT_EQ(plan.choices.loss_chunk_rows, 77);
}

TEST_F(HostPlanTest, WhatDoesNotFitSaysWhatWould) {
  HostPlanRequest fixed = request(8, 2);
  fixed.fixed.micro_batch_size = 2;
  fixed.fixed.recompute = {"none"};
  const HostPlan plan = make_host_plan(fixed);
  EXPECT_FALSE(plan.fits);
  EXPECT_GT(plan.needed_bytes(), plan.limit.tensor_bytes);
  EXPECT_THAT(texts_of(plan), Contains(HasSubstr("memory.recompute=auto")));

  const HostPlan small = make_host_plan(request(4, 1));
  EXPECT_FALSE(small.fits);
  EXPECT_THAT(texts_of(small), Contains(HasSubstr("lora.rank=16")));
  EXPECT_THAT(make_host_plan(request(0.6, 1)).suggestions, IsEmpty());
}

/// What a suggestion for the host asks for, done to the request. False for a word that is not known here.
bool apply(const Suggestion& suggestion, HostPlanRequest& request) {
  for (const auto& argument : suggestion.arguments) {
    const std::string key = argument.substr(0, argument.find('='));
    const std::string value = argument.substr(argument.find('=') + 1);
    if (key == "memory.limit_gb") {
      request.limit_gigabytes = value == "auto" ? std::nullopt : std::optional{std::stod(value)};
    } else if (key == "memory.mode") {
      request.mode = Mode::kAggressive;
    } else if (key == "memory.recompute") {
      request.fixed.recompute.text = value;
    } else if (key == "training.micro_batch_size") {
      request.fixed.micro_batch_size = value == "auto" ? std::nullopt : std::optional{std::stoll(value)};
    } else if (key == "training.optimizer_states") {
      request.job.optimizer.states = engine::OptimizerStates::k8Bit;
    } else if (key == "model.freeze_vision_tower") {
      request.job.frozen.vision_tower = true;
    } else if (key == "lora.rank") {
      request.job.lora = nn::LoraSettings{.rank = std::stoll(value)};
    } else if (key == "model.quantization") {
      request.job.quantization = value == "nf4" ? nn::Quantization::kNf4 : nn::Quantization::kInt8;
    } else if (key == "data.max_length") {
      request.workload = request.sample_limits.front().measure(std::stoll(value), true)->workload;
    } else if (key != "data.on_bad_sample") {
      return false;
    }
  }
  return !suggestion.arguments.empty();
}

/// One long text among short samples: the text can be left out, and a limit of one's own can be raised.
TEST_F(HostPlanTest, ALongTextIsLeftOutOrTheLimitRaisedAndBothFit) {
  const data::SampleShape text = model_.shape({.images = 0, .text_tokens = 20'000, .label_tokens = 12'000});
  HostPlanRequest asked = request(40, 1);
  asked.limit_gigabytes = 6.5;
  asked.workload.candidates = {{.shapes = {text, shape_}, .first_id = "long"}};
  asked.sample_limits = {{.form = "data.max_length={} data.on_bad_sample=skip",
                          .now = text.tokens,
                          .least = [this] { return shape_.tokens; },
                          .unit = 1,
                          .meaning = "takes no longer sample",
                          .measure = [&](int64_t tokens, bool) -> std::optional<LimitedSamples> {
                            auto left = asked.workload;
                            if (tokens < text.tokens) left.candidates = {{.shapes = {shape_}, .first_id = "short"}};
                            return LimitedSamples{.workload = left, .left_out = 1, .samples = 3};
                          }}};
  const HostPlan plan = make_host_plan(asked);
  ASSERT_FALSE(plan.fits);
  EXPECT_EQ(plan.worst.first_id, "long");
  EXPECT_THAT(texts_of(plan),
              Contains(HasSubstr("data.on_bad_sample=skip: takes no longer sample, which leaves out 1 of 3")));
  EXPECT_THAT(texts_of(plan), Contains(HasSubstr("memory.limit_gb=")));
  for (const auto& suggestion : plan.suggestions) {
    SCOPED_TRACE(suggestion.text());
    EXPECT_THAT(suggestion.text(), Not(HasSubstr("card")));
    HostPlanRequest changed = asked;
    ASSERT_TRUE(apply(suggestion, changed));
    EXPECT_TRUE(make_host_plan(changed).fits);
  }
  // The last hundredth that does not do.
  for (const auto& suggestion : plan.suggestions) {
    if (!suggestion.arguments.front().starts_with("memory.limit_gb=")) continue;
    asked.limit_gigabytes = std::stod(suggestion.arguments.front().substr(16)) - 0.1;
    EXPECT_FALSE(make_host_plan(asked).fits);
  }
}

TEST_F(HostPlanTest, NoHigherLimitIsNamedThanThereIsMemory) {
  HostPlanRequest asked = request(5, 1);
  asked.limit_gigabytes = 4.5;
  const HostPlan plan = make_host_plan(asked);
  ASSERT_FALSE(plan.fits);
  EXPECT_THAT(texts_of(plan), Not(Contains(HasSubstr("memory.limit_gb"))));
}

/// What needs 96 % of the memory, in the one way that is allowed.
TEST_F(HostPlanTest, ASmallerMarginIsNamedWhereThatIsAllItTakes) {
  HostPlanRequest asked = request(200, 1);
  asked.fixed = {.micro_batch_size = 1, .recompute = {"all"}, .vision_tiles_per_pass = 0, .loss_chunk_rows = 64};
  const auto needed = static_cast<double>(make_host_plan(asked).total_bytes());
  asked.room.bytes = static_cast<int64_t>(needed / 0.96);
  const HostPlan plan = make_host_plan(asked);
  ASSERT_FALSE(plan.fits);
  EXPECT_THAT(texts_of(plan), Contains(HasSubstr("memory.mode=aggressive: keeps 2 % of the memory free instead of 5")));
  asked.mode = Mode::kAggressive;
  EXPECT_TRUE(make_host_plan(asked).fits);
}

TEST_F(HostPlanTest, ItsJsonAddsUp) {
  const HostPlan plan = make_host_plan(request(200));
  const auto json = plan.to_json();
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["room_bytes"], 200'000'000'000);
  EXPECT_EQ(json["room_bound"], "a test");
  EXPECT_EQ(json["limit_bytes"], plan.limit.tensor_bytes);
  const auto& memory = json["memory"];
  int64_t parts = 0;
  for (const auto* const part :
       {"allocated_peak_bytes", "fragmentation_bytes", "process_bytes", "samples_ahead_bytes", "libraries_bytes"}) {
    parts += memory[part].get<int64_t>();
  }
  EXPECT_EQ(memory["total_bytes"], parts);
  EXPECT_EQ(memory["allocated_peak_bytes"], plan.peak_bytes);
}

TEST_F(HostPlanTest, TheLimitIsTheRoomLessMarginProgramAndSamples) {
  const HostNeeds needs{.process_bytes = 300'000'000,
                        .sample_bytes = 20'000'000,
                        .making_bytes = 50'000'000,
                        .samples_of_step = 4,
                        .threads = 2};
  const HostLimit limit = host_limit({.bytes = 10'000'000'000, .bound = "a test"}, 8.0, Mode::kConservative, needs);
  EXPECT_EQ(limit.ahead_bytes, 2 * 4 * needs.sample_bytes);
  EXPECT_EQ(limit.samples_bytes, (2 * 4 + 4 + 2) * needs.sample_bytes + 2 * needs.making_bytes);
  // Of several ranks each passes over the others' samples.
  HostNeeds shared = needs;
  shared.world_size = 3;
  EXPECT_EQ(host_limit({.bytes = 10'000'000'000, .bound = "a test"}, 8.0, Mode::kConservative, shared).ahead_bytes,
            (2 * 4 + 2) * needs.sample_bytes);
  EXPECT_EQ(limit.room.bytes, 8'000'000'000);
  EXPECT_EQ(limit.room.bound, "memory.limit_gb");
  EXPECT_EQ(limit.margin_bytes, 800'000'000);
  EXPECT_NEAR(static_cast<double>(limit.total_bytes(limit.tensor_bytes)), 7'200'000'000, 10);
  // More than there is does not make it more.
  EXPECT_EQ(host_limit({.bytes = 1'000, .bound = "a test"}, 8.0, Mode::kBalanced, {}).room.bytes, 1'000);
}

TEST(BytesForSamplesAhead, AreAQuarterOfWhatIsLeft) {
  EXPECT_EQ(bytes_for_samples_ahead(10'000, 2'000), 2'000);
  EXPECT_EQ(bytes_for_samples_ahead(10'000, 12'000), 1);
}

}  // namespace
}  // namespace vlmtrain::planner
