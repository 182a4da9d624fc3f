#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "planner/dry_run.h"
#include "planner/dry_run/cpu_dry_run.h"
#include "planner/dry_run/dry_run_session.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// The peak of a step of these samples on the CPU, counted allocation by allocation. Values are
/// uninitialized, as in dry runs.
int64_t measure_cpu_bytes(const Job& job, const StepConfig& step_config, const std::vector<SampleGroup>& samples) {
  memory::AllocationFaultInjector allocations;
  allocations.arm({});
  DryRunSession run(job, at::kCPU);
  run.step(samples, make_step_layout(step_config, samples));
  return allocations.peak_bytes();
}

int64_t dry_run_bytes(const Job& job, const StepConfig& step_config, const std::vector<SampleGroup>& samples) {
  return CpuDryRun(job).step(step_config, samples).compute_max_peaks().allocated_bytes;
}

/// The relative error of the dry run.
double compute_relative_error(const Job& job, const StepConfig& step_config, const std::vector<SampleGroup>& samples) {
  const auto measured = static_cast<double>(measure_cpu_bytes(job, step_config, samples));
  return static_cast<double>(dry_run_bytes(job, step_config, samples)) / measured - 1;
}

/// A job for the checkpoint of a parity case, with samples of the case's shapes.
struct CaseJob {
  explicit CaseJob(const std::string& name) {
    const parity::Case reference(name);
    job.model = reference.checkpoint();
    const auto processor = reference.load_processor();
    const io::InMemoryRecords records(reference.records());
    for (int64_t i = 0; i < records.size(); ++i) {
      add_sample(samples, data::get_sample_shape(data::make_sample(*processor, records[i], i)));
    }
  }

  Job job;
  std::vector<SampleGroup> samples;
};

class CpuDryRunCaseTest : public testing::TestWithParam<std::string> {};

/// The models are so small that tables and single buffers are a large part of the total.
/// Temporaries of kernels depend on the instruction set.
constexpr double kMinError = -0.1;
constexpr double kMaxError = 0.1;
const auto kIsAccurate = testing::AllOf(testing::Gt(kMinError), testing::Lt(kMaxError));

TEST_P(CpuDryRunCaseTest, MatchesAnEvaluationOnTheCpu) {
  // Without moments and gradients, buffers are a larger part, including oneDNN's for the weights of
  // adjacent Linears.
  const auto kIsClose = testing::AllOf(testing::Gt(-0.2), testing::Lt(0.3));
  const CaseJob case_job(GetParam());
  for (const int64_t new_tokens : {0, 20}) {
    const EvaluationBatch batch{.samples = case_job.samples, .layout = {}, .max_new_tokens = new_tokens};
    memory::AllocationFaultInjector allocations;
    allocations.arm({});
    const DryRunSession run(case_job.job, at::kCPU, /*with_training=*/false);
    run.evaluate(batch);
    const auto measured = static_cast<double>(allocations.peak_bytes());
    CpuDryRun dry_run(case_job.job, CpuDryRun::Detail::kNone, /*with_training=*/false);
    EXPECT_THAT(static_cast<double>(dry_run.evaluate(batch).allocated_bytes) / measured - 1, kIsClose) << new_tokens;
  }
}

TEST_P(CpuDryRunCaseTest, MatchesTheCpu) {
  CaseJob case_job(GetParam());
  for (const auto precision : {engine::Precision::kFp32, engine::Precision::kBf16}) {
    case_job.job = make_job_with_precision(case_job.job, precision);
    for (const int64_t blocks : {0, 100}) {
      StepConfig step_config{.micro_batch_size = 8, .recompute = {blocks, blocks}};
      EXPECT_THAT(compute_relative_error(case_job.job, step_config, case_job.samples), kIsAccurate)
          << engine::to_string(precision) << ", " << blocks << " blocks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CpuDryRunCaseTest,
                         testing::Values("mixed_batch", "llava_clip_llama", "llava_clip_mistral", "nanovlm_tiles",
                                         "qwen2_vl_images", "qwen2_5_vl_mixed", "qwen3_vl_mixed", "qwen3_5_images",
                                         "internvl3_5_mixed", "gemma3_published", "gemma4_tower", "gemma4_per_layer",
                                         "gemma4_unified_video", "text_only"));

TEST(CpuDryRunTest, MatchesTheCpuWithLoraAndCompressedMoments) {
  CaseJob case_job("mixed_batch");
  const StepConfig step_config = make_step_config(4);
  case_job.job.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(compute_relative_error(case_job.job, step_config, case_job.samples), kIsAccurate);
  case_job.job.quantization = nn::Quantization::kNf4;
  EXPECT_THAT(compute_relative_error(case_job.job, step_config, case_job.samples), kIsAccurate);
  case_job.job.lora.reset();
  case_job.job.quantization = nn::Quantization::kNone;
  for (const auto states : {engine::OptimizerStateDtype::kBf16, engine::OptimizerStateDtype::k8Bit}) {
    case_job.job.optimizer.state_dtype = states;
    EXPECT_THAT(compute_relative_error(case_job.job, step_config, case_job.samples), kIsAccurate);
  }
}

/// SmolVLM-256M with samples of up to 17 tiles, too large to train in a test.
class HostPlanTest : public testing::Test {
 protected:
  PlanRequest request(double gigabytes, int64_t global_batch = 4) const {
    return {.model = "smolvlm-256m",
            .job = model_.job(),
            .target = TargetHost{.available_memory = {.bytes = static_cast<int64_t>(gigabytes * 1e9),
                                                      .limit_source = "a test"},
                                 .requirements = {.process_bytes = 200'000'000,
                                                  .largest_sample_bytes = 13'000'000,
                                                  .samples_per_step = global_batch},
                                 .max_micro_batch_size = global_batch},
            .limit_gigabytes = std::nullopt,
            .workload = {.worst_batches = {{.shapes = {shape_}, .first_sample_id = "largest"}},
                         .global_batch_size = global_batch},
            .constraints = {}};
  }

  /// The reserved bytes of a config with the worst batch of the request.
  static int64_t measure_reserved_bytes(const PlanRequest& request, const StepConfig& step_config) {
    PlanEvaluator evaluator({.job = request.job, .target = request.target, .workload = request.workload});
    return evaluator.dry_run(step_config).peaks.reserved_bytes;
  }

  static std::vector<std::string> list_texts(const Plan& plan) {
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
    const Plan plan = make_plan(request(gigabytes));
    ASSERT_TRUE(plan.fits);
    EXPECT_LE(plan.peaks().reserved_bytes, plan.limit.limit_bytes);
    EXPECT_LE(plan.total_bytes() + plan.limit.margin_bytes, plan.limit.allowed_bytes);
    EXPECT_LE(plan.best_estimate.step_config.micro_batch_size, micro_batch);
    micro_batch = plan.best_estimate.step_config.micro_batch_size;
    const int64_t blocks =
        plan.best_estimate.step_config.recompute.vision + plan.best_estimate.step_config.recompute.language;
    EXPECT_GE(blocks, recomputed);
    recomputed = blocks;
    EXPECT_TRUE(micro_batch == 1 || blocks == 0);
    EXPECT_EQ(plan.worst_batch.first_sample_id, "largest");
    EXPECT_GT(plan.detail.peak.bytes_by_component[static_cast<size_t>(memory::Component::kWeights)], 0);
  }
  EXPECT_EQ(micro_batch, 1);
  EXPECT_GT(recomputed, 0);
}

TEST_F(HostPlanTest, RecomputesAsFewBlocksAsPossible) {
  const Plan plan = make_plan(request(9));
  ASSERT_TRUE(plan.fits);
  StepConfig fewer_blocks = plan.best_estimate.step_config;
  ASSERT_GT(fewer_blocks.recompute.vision, 0);
  (fewer_blocks.recompute.language > 0 ? fewer_blocks.recompute.language : fewer_blocks.recompute.vision) -= 1;
  EXPECT_GT(measure_reserved_bytes(request(9), fewer_blocks), plan.limit.limit_bytes);
}

TEST_F(HostPlanTest, ADryRunTakesNoMemory) {
  const int64_t before = memory::get_peak_resident_bytes();
  const Plan plan = make_plan(request(200));
  EXPECT_GT(plan.peaks().allocated_bytes, 19'000'000'000);
  EXPECT_LT(memory::get_peak_resident_bytes() - before, 500'000'000);
}

TEST_F(HostPlanTest, ConstraintsAreKept) {
  PlanRequest constrained_request = request(40);
  constrained_request.constraints = {
      .micro_batch_size = 2, .recompute = {"3+5"}, .vision_tiles_per_pass = 4, .loss_chunk_rows = 77};
  const Plan plan = make_plan(constrained_request);
  ASSERT_TRUE(plan.fits);
  EXPECT_EQ(plan.best_estimate.step_config.micro_batch_size, 2);
  EXPECT_EQ(plan.best_estimate.step_config.recompute, (models::RecomputeBlockCounts{3, 5}));
  EXPECT_EQ(plan.best_estimate.step_config.vision_tiles_per_pass, 4);
  EXPECT_EQ(plan.best_estimate.step_config.loss_chunk_rows, 77);
}

TEST_F(HostPlanTest, TriesNoLargerMicroBatchThanTheTargetAllows) {
  PlanRequest limited_request = request(200);
  EXPECT_EQ(make_plan(limited_request).best_estimate.step_config.micro_batch_size, 4);
  std::get<TargetHost>(limited_request.target).max_micro_batch_size = 2;
  const Plan plan = make_plan(limited_request);
  EXPECT_EQ(plan.best_estimate.step_config.micro_batch_size, 2);
  for (const auto& estimate : plan.alternatives) EXPECT_LE(estimate.step_config.micro_batch_size, 2);
}

TEST_F(HostPlanTest, SuggestsChangesWhereNothingFits) {
  PlanRequest constrained_request = request(8, 2);
  constrained_request.constraints.micro_batch_size = 2;
  constrained_request.constraints.recompute = {"none"};
  const Plan plan = make_plan(constrained_request);
  EXPECT_FALSE(plan.fits);
  EXPECT_GT(plan.peaks().reserved_bytes, plan.limit.limit_bytes);
  EXPECT_THAT(list_texts(plan), Contains(HasSubstr("memory.recompute=auto")));

  const Plan small_plan = make_plan(request(4, 1));
  EXPECT_FALSE(small_plan.fits);
  EXPECT_THAT(list_texts(small_plan), Contains(HasSubstr("lora.rank=16")));
  EXPECT_THAT(make_plan(request(0.6, 1)).suggestions, IsEmpty());
}

/// Applies a CPU suggestion to the request. Returns false for an unknown argument.
bool apply(const Suggestion& suggestion, PlanRequest& request) {
  for (const auto& argument : suggestion.arguments) {
    const std::string key = argument.substr(0, argument.find('='));
    const std::string value = argument.substr(argument.find('=') + 1);
    if (key == "memory.limit_gb") {
      request.limit_gigabytes = value == "auto" ? std::nullopt : std::optional{std::stod(value)};
    } else if (key == "memory.mode") {
      request.mode = MemoryMode::kAggressive;
    } else if (key == "memory.recompute") {
      request.constraints.recompute.text = value;
    } else if (key == "training.micro_batch_size") {
      request.constraints.micro_batch_size = value == "auto" ? std::nullopt : std::optional{std::stoll(value)};
    } else if (key == "training.optimizer_states") {
      request.job.optimizer.state_dtype = engine::OptimizerStateDtype::k8Bit;
    } else if (key == "model.freeze_vision_tower") {
      request.job.frozen_parts.vision_tower = true;
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

/// One long text among short samples: the text can be dropped, and the user's limit can be raised.
TEST_F(HostPlanTest, SuggestsDroppingALongTextOrRaisingTheLimit) {
  const data::SampleShape text = model_.shape({.images = 0, .text_tokens = 20'000, .label_tokens = 12'000});
  PlanRequest limited_request = request(40, 1);
  limited_request.limit_gigabytes = 6.5;
  limited_request.workload.worst_batches = {{.shapes = {text, shape_}, .first_sample_id = "long"}};
  limited_request.sample_limits = {{.argument_format = "data.max_length={} data.on_bad_sample=skip",
                                    .max_useful_value = text.tokens,
                                    .find_min = [this] { return shape_.tokens; },
                                    .granularity = 1,
                                    .description = "takes no longer sample",
                                    .measure = [&](int64_t tokens, bool) -> std::optional<LimitedSamples> {
                                      auto remaining = limited_request.workload;
                                      if (tokens < text.tokens)
                                        remaining.worst_batches = {{.shapes = {shape_}, .first_sample_id = "short"}};
                                      return LimitedSamples{.workload = remaining, .num_dropped = 1, .num_samples = 3};
                                    }}};
  const Plan plan = make_plan(limited_request);
  ASSERT_FALSE(plan.fits);
  EXPECT_EQ(plan.worst_batch.first_sample_id, "long");
  EXPECT_THAT(list_texts(plan),
              Contains(HasSubstr("data.on_bad_sample=skip: takes no longer sample, which drops 1 of 3")));
  EXPECT_THAT(list_texts(plan), Contains(HasSubstr("memory.limit_gb=")));
  for (const auto& suggestion : plan.suggestions) {
    SCOPED_TRACE(suggestion.text());
    EXPECT_THAT(suggestion.text(), Not(HasSubstr("GPU")));
    PlanRequest changed = limited_request;
    changed.with_suggestions = false;
    ASSERT_TRUE(apply(suggestion, changed));
    EXPECT_TRUE(make_plan(changed).fits);
  }
  // The last hundredth that does not suffice.
  limited_request.with_suggestions = false;
  for (const auto& suggestion : plan.suggestions) {
    if (!suggestion.arguments.front().starts_with("memory.limit_gb=")) continue;
    limited_request.limit_gigabytes = std::stod(suggestion.arguments.front().substr(16)) - 0.1;
    EXPECT_FALSE(make_plan(limited_request).fits);
  }
}

TEST_F(HostPlanTest, SuggestsNoLimitAboveTheAvailableMemory) {
  PlanRequest limited_request = request(5, 1);
  limited_request.limit_gigabytes = 4.5;
  const Plan plan = make_plan(limited_request);
  ASSERT_FALSE(plan.fits);
  EXPECT_THAT(list_texts(plan), Not(Contains(HasSubstr("memory.limit_gb"))));
}

/// Needs 96 % of the memory in the only allowed config.
TEST_F(HostPlanTest, SuggestsASmallerMargin) {
  PlanRequest limited_request = request(200, 1);
  limited_request.constraints = {
      .micro_batch_size = 1, .recompute = {"all"}, .vision_tiles_per_pass = 0, .loss_chunk_rows = 64};
  const auto needed = static_cast<double>(make_plan(limited_request).total_bytes());
  std::get<TargetHost>(limited_request.target).available_memory.bytes = static_cast<int64_t>(needed / 0.96);
  const Plan plan = make_plan(limited_request);
  ASSERT_FALSE(plan.fits);
  EXPECT_THAT(list_texts(plan),
              Contains(HasSubstr("memory.mode=aggressive: keeps 2 % of the available memory free instead of 5")));
  limited_request.mode = MemoryMode::kAggressive;
  EXPECT_TRUE(make_plan(limited_request).fits);
}

TEST_F(HostPlanTest, TheJsonAddsUp) {
  const Plan plan = make_plan(request(200));
  const auto json = plan.to_json();
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["available_bytes"], 200'000'000'000);
  EXPECT_EQ(json["available_limited_by"], "a test");
  EXPECT_EQ(json["limit_bytes"], plan.limit.limit_bytes);
  const auto& memory = json["memory"];
  int64_t total = 0;
  for (const auto* const key : {"allocated_peak_bytes", "fragmentation_bytes", "process_bytes",
                                "prefetched_samples_bytes", "libraries_bytes"}) {
    total += memory[key].get<int64_t>();
  }
  EXPECT_EQ(memory["total_bytes"], total);
  EXPECT_EQ(memory["allocated_peak_bytes"], plan.peaks().allocated_bytes);
}

TEST_F(HostPlanTest, TheLimitIsTheAvailableMemoryLessMarginProcessAndSamples) {
  const HostMemoryRequirements needs{.process_bytes = 300'000'000,
                                     .largest_sample_bytes = 20'000'000,
                                     .decode_bytes = 50'000'000,
                                     .samples_per_step = 4,
                                     .num_loader_threads = 2};
  const auto compute_limit = [](int64_t bytes, const HostMemoryRequirements& requirements) {
    const TargetHost host{.available_memory = {.bytes = bytes, .limit_source = "a test"}, .requirements = requirements};
    return compute_memory_limit(host, MemoryMode::kConservative, 8.0, /*world_size=*/1);
  };
  const MemoryLimit limit = compute_limit(10'000'000'000, needs);
  EXPECT_EQ(limit.prefetch_bytes, 2 * 4 * needs.largest_sample_bytes);
  EXPECT_EQ(limit.decoded_samples_bytes, (2 * 4 + 4 + 2) * needs.largest_sample_bytes + 2 * needs.decode_bytes);
  // Each of several ranks skips the samples of the others.
  HostMemoryRequirements multi_rank = needs;
  multi_rank.world_size = 3;
  EXPECT_EQ(compute_limit(10'000'000'000, multi_rank).prefetch_bytes, (2 * 4 + 2) * needs.largest_sample_bytes);
  EXPECT_EQ(limit.allowed_bytes, 8'000'000'000);
  EXPECT_EQ(limit.limit_source, "memory.limit_gb");
  EXPECT_EQ(limit.margin_bytes, 800'000'000);
  EXPECT_NEAR(static_cast<double>(limit.limit_bytes + limit.overhead_bytes()), 7'200'000'000, 10);
  // A limit above the available memory has no effect.
  EXPECT_EQ(compute_limit(1'000, {}).allowed_bytes, 1'000);
}

TEST(ComputePrefetchBytesTest, IsAQuarterOfTheRemainingMemory) {
  EXPECT_EQ(compute_prefetch_bytes(10'000, 2'000), 2'000);
  EXPECT_EQ(compute_prefetch_bytes(10'000, 12'000), 1);
}

}  // namespace
}  // namespace vlmtrain::planner
