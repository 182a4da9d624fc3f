#include "vlmtrain/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "planner/dry_run.h"
#include "planner/search/plan_evaluator.h"
#include "planner/user_error.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Workload make_workload(data::SampleShape shape, int64_t global_batch_size, int64_t world_size = 1) {
  return {.candidates = {{.shapes = {shape}, .first_sample_id = {}}},
          .global_batch_size = global_batch_size,
          .world_size = world_size};
}

/// As the planner itself rehearses choices with a batch.
StepEstimate dry_run(const PlanRequest& request, const StepConfig& step_config, const SampleBatch& batch) {
  const auto limit =
      compute_memory_limit(request.target, request.mode, request.limit_gigabytes, request.workload.world_size);
  PlanEvaluator evaluator(request.job, request.target, request.workload, limit.limit_bytes);
  evaluator.add_worst_case(batch);
  return evaluator.dry_run(step_config);
}

std::optional<StepConfig> find_next_larger_config(const Plan& plan) {
  StepConfig larger = plan.best.step_config;
  for (int64_t size = larger.micro_batch_size + 1; size <= plan.workload.samples_per_rank(); ++size) {
    if (plan.workload.samples_per_rank() % size != 0) continue;
    larger.micro_batch_size = size;
    return larger;
  }
  return std::nullopt;
}

class TinyPlanTest : public testing::Test {
 protected:
  PlanRequest request(int64_t global_batch_size, int64_t world_size = 1) const {
    return {.model = "smolvlm-tiny",
            .job = model_.job(),
            .target = find_target_gpu("rtx4090"),
            .limit_gigabytes = std::nullopt,
            .workload = make_workload(model_.shape({.images = 1}), global_batch_size, world_size),
            .constraints = {}};
  }

  const PresetFolder model_{"smolvlm-tiny"};
};

TEST_F(TinyPlanTest, TheGlobalBatchIsExact) {
  for (const int64_t global_batch_size : {1, 6, 7, 16, 48}) {
    for (const int64_t world_size : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} samples, {} ranks", global_batch_size, world_size));
      if (global_batch_size % world_size != 0) {
        EXPECT_THAT(
            get_error_message([&] { make_plan(request(global_batch_size, world_size)); }),
            AllOf(HasSubstr(std::to_string(global_batch_size)), HasSubstr(std::to_string(world_size) + " ranks")));
        continue;
      }
      const Plan plan = make_plan(request(global_batch_size, world_size));
      ASSERT_TRUE(plan.fits);
      EXPECT_EQ(plan.best.step_config.micro_batch_size * plan.accumulation_steps() * world_size, global_batch_size);
      EXPECT_LE(plan.best.peaks.reserved_bytes, plan.limit.limit_bytes);
      for (const auto& estimate : plan.alternatives) {
        EXPECT_EQ((global_batch_size / world_size) % estimate.step_config.micro_batch_size, 0);
      }
    }
  }
}

TEST_F(TinyPlanTest, AMicroBatchThatDoesNotDivideIsRejected) {
  PlanRequest invalid_request = request(48, 4);
  invalid_request.constraints.micro_batch_size = 5;
  EXPECT_THAT(get_error_message([&] { make_plan(invalid_request); }),
              AllOf(HasSubstr("micro-batch of 5"), HasSubstr("12 samples"), HasSubstr("1, 2, 3, 4, 6, 12")));
  invalid_request.constraints.micro_batch_size = 24;
  EXPECT_THAT(get_error_message([&] { make_plan(invalid_request); }), HasSubstr("1, 2, 3, 4, 6, 12"))
      << "more than a rank has";
}

TEST_F(TinyPlanTest, AModelThatCannotBeBuiltIsAUserError) {
  PlanRequest invalid_request = request(4);
  invalid_request.job.model = "/nowhere";
  EXPECT_THAT(get_error_message([&] { make_plan(invalid_request); }, ExitCode::kBadData),
              HasSubstr("/nowhere: there is no such folder"));
}

TEST_F(TinyPlanTest, AGpuWithoutBf16IsRejected) {
  PlanRequest t4 = request(4);
  t4.target = find_target_gpu("t4");
  EXPECT_THAT(get_error_message([&] { make_plan(t4); }), AllOf(HasSubstr("Tesla T4"), HasSubstr("precision=fp32")));
  t4.job = with_precision(t4.job, engine::Precision::kFp32);
  EXPECT_TRUE(make_plan(t4).fits);
  t4.job = with_precision(t4.job, engine::Precision::kFp16);
  EXPECT_TRUE(make_plan(t4).fits);
}

/// Two ranks of two samples are as two samples, but for what they say to each other.
TEST_F(TinyPlanTest, TheSuggestedGpuHasMemoryForCommunication) {
  const auto larger = [&](int64_t global_batch_size, int64_t world_size) {
    PlanRequest small = request(global_batch_size, world_size);
    small.target.memory_bytes = 400'000'000;
    const Plan plan = make_plan(small);
    EXPECT_FALSE(plan.fits);
    return plan.suggestions.back();
  };
  const Suggestion single_rank = larger(2, 1);
  const Suggestion multi_rank = larger(4, 2);
  EXPECT_THAT(single_rank.note, testing::ContainsRegex("a card of [0-9]+ GB or more; [0-9]+.[0-9] GB are enough then"));
  EXPECT_EQ(multi_rank.note.substr(0, multi_rank.note.find(';')),
            single_rank.note.substr(0, single_rank.note.find(';')));
  EXPECT_EQ(
      multi_rank.total_bytes - single_rank.total_bytes,
      compute_memory_limit(find_target_gpu("rtx4090"), MemoryMode::kBalanced, std::nullopt, 2).communication_bytes);
}

/// What ranks add up is their gradients, in fp32 and as laid out; it takes no memory of PyTorch's.
TEST_F(TinyPlanTest, RanksReduceTheirGradients) {
  const Plan single_rank = make_plan(request(4)), multi_rank = make_plan(request(16, 4));
  EXPECT_FALSE(single_rank.communication);
  ASSERT_TRUE(multi_rank.communication);
  const StepCollectives& collectives = multi_rank.communication->collectives;
  const double gradients = 4.0 * static_cast<double>(multi_rank.detail.num_trainable_parameters);
  EXPECT_GE(static_cast<double>(multi_rank.communication->bytes()), gradients);
  EXPECT_LE(static_cast<double>(multi_rank.communication->bytes()), 1.1 * gradients);
  EXPECT_EQ(multi_rank.peaks().reserved_bytes, single_rank.peaks().reserved_bytes);
  EXPECT_EQ(multi_rank.peaks().allocated_bytes, single_rank.peaks().allocated_bytes);
  EXPECT_DOUBLE_EQ(multi_rank.best.step_seconds,
                   single_rank.best.step_seconds + multi_rank.communication->exposed_seconds);
  EXPECT_GT(multi_rank.communication->exposed_seconds, 0);
  EXPECT_GE(collectives.overlapped_reductions, 0);
  EXPECT_LT(collectives.overlapped_reductions, std::ssize(collectives.reductions));
}

TEST_F(TinyPlanTest, GradientsOfSeparateTasksDoNotOverlap) {
  PlanRequest separate_tasks = request(8, 2);
  separate_tasks.job.objective.tasks = {.count = 2, .weights = {1, 1}, .resolve_conflicts = true};
  const Plan plan = make_plan(separate_tasks), plain_plan = make_plan(request(8, 2));
  EXPECT_EQ(plan.communication->collectives.overlapped_reductions, 0);
  EXPECT_GT(plan.communication->bytes(), 1.9 * static_cast<double>(plain_plan.communication->bytes()));
}

/// Rank 1 of two has all that is large in the second of the steps.
TEST_F(TinyPlanTest, TheRankThatNeedsMostIsReported) {
  PlanRequest request_with_steps = request(8, 2);
  const auto large = model_.shape({.images = 2}), small = model_.shape({.images = 0, .text_tokens = 80});
  const std::vector larger(4, large), smaller(4, small);
  request_with_steps.workload.candidates = {{.shapes = {large}, .first_sample_id = "large"}};
  request_with_steps.workload.sampled_steps = {{smaller, smaller}, {smaller, larger}};
  const Plan plan = make_plan(request_with_steps);
  ASSERT_EQ(plan.rank_steps.size(), 2U);
  EXPECT_EQ(plan.rank_steps[1].rank, 1);
  EXPECT_EQ(plan.rank_steps[1].sampled_step, 1);
  EXPECT_GT(plan.rank_steps[1].peaks.allocated_bytes, plan.rank_steps[0].peaks.allocated_bytes);
  EXPECT_LE(plan.rank_steps[1].peaks.reserved_bytes, plan.peaks().reserved_bytes);
  const auto json = plan.to_json()["ranks"];
  EXPECT_EQ(json[0]["rank"], 1);
}

TEST_F(TinyPlanTest, ReportsTheFreeMemoryOfASingleMicroBatch) {
  const Plan plan = make_plan(request(2));
  ASSERT_FALSE(plan.suggestions.empty());
  EXPECT_THAT(plan.suggestions.back().text(), testing::ContainsRegex("; 2[0-9].[0-9] GB stay free beside the margin"));
}

TEST_F(TinyPlanTest, PlansTextOnlySamples) {
  PlanRequest text_request = request(8);
  text_request.workload = make_workload(model_.shape({.images = 0, .text_tokens = 200}), 8);
  const Plan plan = make_plan(text_request);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.best.step_config.recompute.vision, 0) << "there is nothing to recompute";
}

TEST_F(TinyPlanTest, IsDeterministic) {
  const Plan first = make_plan(request(16));
  const Plan second = make_plan(request(16));
  auto json = first.to_json();
  auto other = second.to_json();
  for (auto* one : {&json, &other}) {
    one->erase("plan_seconds");
    one->erase("rehearsal_seconds");
  }
  EXPECT_EQ(json, other);
}

TEST_F(TinyPlanTest, TheJsonMatchesThePlan) {
  const Plan plan = make_plan(request(16, 2));
  const auto json = plan.to_json();
  EXPECT_EQ(json["gradient_accumulation_steps"], plan.accumulation_steps());
  EXPECT_EQ(json["limit_bytes"], plan.limit.limit_bytes);
  const auto& memory = json["memory"];
  const auto bytes = [&](const char* key) { return memory[key].get<int64_t>(); };
  EXPECT_EQ(bytes("total_bytes"), bytes("reserved_peak_bytes") + bytes("context_bytes") + bytes("communication_bytes"));
  EXPECT_EQ(bytes("allocated_peak_bytes"), bytes("weights_bytes") + bytes("gradients_bytes") +
                                               bytes("optimizer_bytes") + bytes("activations_bytes") +
                                               bytes("workspace_bytes"));
  EXPECT_EQ(bytes("activations_bytes"), bytes("vision_activations_bytes") + bytes("language_activations_bytes") +
                                            bytes("loss_bytes") + bytes("input_bytes"));
  EXPECT_EQ(bytes("fragmentation_bytes"), bytes("reserved_peak_bytes") - bytes("allocated_peak_bytes"));
  EXPECT_GT(bytes("communication_bytes"), 0);
  EXPECT_EQ(json["alternatives"].size(), plan.alternatives.size());
  EXPECT_GT(json["plan_seconds"], 0);
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
            .constraints = {}};
  }

  void expect_fits(const Plan& plan) const {
    EXPECT_TRUE(plan.fits);
    EXPECT_TRUE(plan.best.fits);
    EXPECT_TRUE(plan.best.from_dry_run);
    EXPECT_LE(plan.best.peaks.reserved_bytes, plan.limit.limit_bytes);
    EXPECT_LE(plan.total_bytes() + plan.limit.margin_bytes, plan.limit.gpu_bytes);
  }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape one_image_ = model_.shape({.images = 1});
};

/// By the card's size in gigabytes.
class PlanBySizeTest : public PlanTest, public testing::WithParamInterface<int> {};

TEST_P(PlanBySizeTest, FitsAndTheNextLargerMicroBatchDoesNot) {
  const PlanRequest plan_request = request(GetParam());
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  const auto larger = find_next_larger_config(plan);
  ASSERT_TRUE(larger) << "the whole global batch in one micro-batch fits, so this test tests nothing";
  EXPECT_FALSE(dry_run(plan_request, *larger, plan.worst).fits);
}

TEST_F(PlanTest, RecomputesAsFewBlocksAsPossible) {
  PlanRequest plan_request = request(16);
  plan_request.constraints.micro_batch_size = 4;
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  ASSERT_GT(plan.best.step_config.recompute.vision + plan.best.step_config.recompute.language, 0);
  for (int64_t models::RecomputeBlocks::*tower :
       {&models::RecomputeBlocks::vision, &models::RecomputeBlocks::language}) {
    StepConfig fewer_blocks = plan.best.step_config;
    if (fewer_blocks.recompute.*tower == 0) continue;
    fewer_blocks.recompute.*tower -= 1;
    const bool fits = dry_run(plan_request, fewer_blocks, plan.worst).fits;
    // The tower that is recomputed last decides; of the other all blocks are recomputed.
    const int64_t blocks = tower == &models::RecomputeBlocks::vision ? 12 : 30;
    if (plan.best.step_config.recompute.*tower < blocks) {
      EXPECT_FALSE(fits);
    }
  }
}

/// The card itself, with everything else on it that the plan reckons with and most of the margin filled, does the plan
/// without a retry.
TEST_P(PlanBySizeTest, AGpuOfThatSizeRunsThePlan) {
  const PlanRequest plan_request = request(GetParam());
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  // Steps in another order fill the allocator's pages in another way; of the plan's margin this is a fifth.
  const int64_t available_bytes = plan.best.peaks.reserved_bytes + plan.limit.margin_bytes / 5;
  DryRunProcess process(plan_request.job, {.gpu = std::string(plan_request.target.gpu->name),
                                           .memory_bytes = plan_request.target.memory_bytes,
                                           .used_bytes = plan_request.target.memory_bytes - available_bytes});
  const std::vector<SampleGroup> samples{{one_image_, plan.workload.samples_per_rank()}};
  const DryRunResult result = process.dry_run({.step_config = plan.best.step_config, .steps = std::vector(3, samples)});
  EXPECT_FALSE(result.out_of_memory);
  EXPECT_EQ(result.allocation_retries, 0);
  EXPECT_LE(result.peaks().reserved_bytes, available_bytes);
  EXPECT_GE(static_cast<double>(result.peaks().reserved_bytes),
            0.97 * static_cast<double>(plan.best.peaks.reserved_bytes))
      << "of which smaller batches between, which fragment the memory, take the rest";
}

TEST_F(PlanTest, TheBestIsTheFastestAlternativeThatFits) {
  const Plan plan = make_plan(request(16));
  bool is_found = false;
  for (const auto& estimate : plan.alternatives) {
    is_found |= estimate.step_config == plan.best.step_config;
    EXPECT_EQ(estimate.fits, estimate.peaks.reserved_bytes <= plan.limit.limit_bytes);
    EXPECT_GT(estimate.step_seconds, 0);
    EXPECT_GT(estimate.tokens_per_second, 0);
    if (estimate.fits && estimate.from_dry_run) {
      EXPECT_GE(estimate.step_seconds, plan.best.step_seconds);
    }
  }
  EXPECT_TRUE(is_found);
  EXPECT_TRUE(std::ranges::is_sorted(plan.alternatives, {}, [](const StepEstimate& estimate) {
    const auto& step_config = estimate.step_config;
    return std::tuple(step_config.micro_batch_size, step_config.recompute.vision + step_config.recompute.language);
  }));
}

TEST_F(PlanTest, ConstraintsAreKept) {
  PlanRequest plan_request = request(24);
  plan_request.constraints = {.micro_batch_size = 4,
                              .recompute = {"7"},
                              .vision_tiles_per_pass = 6,
                              .loss_chunk_rows = 100,
                              .expandable_segments = false};
  const Plan plan = make_plan(plan_request);
  const StepConfig& step_config = plan.best.step_config;
  EXPECT_EQ(step_config.micro_batch_size, 4);
  EXPECT_EQ(step_config.recompute, (models::RecomputeBlocks{.vision = 7, .language = 7}));
  EXPECT_EQ(step_config.vision_tiles_per_pass, 6);
  EXPECT_EQ(step_config.loss_chunk_rows, 100);
  EXPECT_FALSE(step_config.expandable_segments);
  EXPECT_EQ(plan.accumulation_steps(), 4);
  EXPECT_EQ(plan.fits, plan.best.peaks.reserved_bytes <= plan.limit.limit_bytes);
}

TEST_F(PlanTest, AMoreConservativeModeKeepsMoreFree) {
  PlanRequest plan_request = request(7);
  std::optional<Plan> previous_plan;
  for (const MemoryMode mode : {MemoryMode::kConservative, MemoryMode::kBalanced, MemoryMode::kAggressive}) {
    plan_request.mode = mode;
    const Plan plan = make_plan(plan_request);
    expect_fits(plan);
    EXPECT_GE(plan.limit.gpu_bytes - plan.total_bytes(),
              static_cast<int64_t>(static_cast<double>(plan.limit.gpu_bytes) * get_margin_percent(mode) / 100));
    if (previous_plan) {
      EXPECT_GT(plan.limit.limit_bytes, previous_plan->limit.limit_bytes);
      EXPECT_LE(plan.best.step_seconds, previous_plan->best.step_seconds) << "what is not kept free makes it no slower";
    }
    previous_plan = plan;
  }
}

TEST_F(PlanTest, AMemoryLimitIsALimit) {
  PlanRequest plan_request = request(24);
  plan_request.limit_gigabytes = 10;
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  EXPECT_EQ(plan.limit.gpu_bytes, 10'000'000'000);
  EXPECT_LT(plan.total_bytes(), 9'500'000'000);
}

/// One batch with the longest texts and one with the most tiles: which is the worst depends on what is recomputed.
TEST_P(PlanBySizeTest, FitsEveryWorstBatch) {
  const auto text_batch = model_.shape({.images = 0, .text_tokens = 6000, .label_tokens = 3000});
  const auto image_batch = model_.shape({.images = 2, .text_tokens = 64, .label_tokens = 16});
  PlanRequest plan_request = request(GetParam() + 2);
  plan_request.workload = {.candidates = {{.shapes = {text_batch}, .first_sample_id = "texts"},
                                          {.shapes = {image_batch}, .first_sample_id = "pictures"}},
                           .global_batch_size = 8};
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  std::vector<int64_t> peaks;
  for (const auto& candidate : plan_request.workload.candidates) {
    peaks.push_back(dry_run(plan_request, plan.best.step_config, candidate).peaks.reserved_bytes);
    EXPECT_LE(peaks.back(), plan.limit.limit_bytes) << candidate.first_sample_id;
  }
  EXPECT_EQ(plan.best.peaks.reserved_bytes, std::ranges::max(peaks)) << "what a run can come to, not less";
  const auto worst = static_cast<size_t>(std::ranges::max_element(peaks) - peaks.begin());
  EXPECT_EQ(plan.worst.first_sample_id, plan_request.workload.candidates[worst].first_sample_id);
}

INSTANTIATE_TEST_SUITE_P(Gigabytes, PlanBySizeTest, testing::Values(8, 16, 24));

/// Without recomputation the pictures need most, with that of the vision tower the texts: both fit, but the plan's
/// numbers are to be theirs.
TEST_F(PlanTest, ReportsTheWorstBatchOfTheBestConfig) {
  PlanRequest plan_request = request(48);
  plan_request.constraints.recompute.text = "12+0";
  plan_request.constraints.micro_batch_size = 1;
  const SampleBatch text_batch{.shapes = {model_.shape({.images = 0, .text_tokens = 6000, .label_tokens = 3000})},
                               .first_sample_id = "texts"};
  const SampleBatch image_batch{.shapes = {model_.shape({.images = 1, .text_tokens = 64, .label_tokens = 16})},
                                .first_sample_id = "pictures"};
  StepConfig no_recompute = make_step_config(1);
  ASSERT_GT(dry_run(plan_request, no_recompute, image_batch).peaks.reserved_bytes,
            dry_run(plan_request, no_recompute, text_batch).peaks.reserved_bytes);
  plan_request.workload = {.candidates = {text_batch, image_batch}, .global_batch_size = 4};
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  const int64_t text_bytes = dry_run(plan_request, plan.best.step_config, text_batch).peaks.reserved_bytes;
  ASSERT_GT(text_bytes, dry_run(plan_request, plan.best.step_config, image_batch).peaks.reserved_bytes);
  EXPECT_EQ(plan.best.peaks.reserved_bytes, text_bytes);
  EXPECT_EQ(plan.worst.first_sample_id, "texts");
  EXPECT_EQ(plan.detail.peak.allocated_bytes, plan.best.peaks.allocated_bytes);
  for (const auto& estimate : plan.alternatives) {
    if (estimate.step_config == plan.best.step_config) {
      EXPECT_EQ(estimate.peaks.reserved_bytes, text_bytes);
    }
  }
}

/// Where attention takes much of the time, what it gave is kept in as many blocks as fit.
TEST_F(PlanTest, KeepsAttentionOfLongSamplesWhereThatFits) {
  PlanRequest plan_request = request(7);
  plan_request.constraints.micro_batch_size = 1;
  plan_request.workload = make_workload(model_.shape({.images = 0, .text_tokens = 16000, .label_tokens = 100}), 4);
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  const models::RecomputeBlocks chosen = plan.best.step_config.recompute;
  EXPECT_GT(chosen.language_selective, 0);
  const SampleBatch& worst = plan_request.workload.candidates.front();
  StepConfig without_kept_attention = plan.best.step_config;
  without_kept_attention.recompute.language_selective = 0;
  const StepEstimate second = dry_run(plan_request, without_kept_attention, worst);
  EXPECT_LT(second.peaks.reserved_bytes, plan.best.peaks.reserved_bytes);
  EXPECT_GT(second.step_seconds, plan.best.step_seconds);
}

/// The first sample of the worst batch by tokens alone need not make the worst batch.
TEST_F(PlanTest, AnEvenBatchCanBeWorseThanOneWithAnOutlier) {
  const auto large = model_.shape({.images = 2});
  const auto small = model_.shape({.images = 0, .text_tokens = 64, .label_tokens = 8});
  SampleBatch outlier{.shapes = {model_.shape({.images = 3})}, .first_sample_id = "outlier"};
  outlier.shapes.resize(16, small);
  SampleBatch even{.shapes = std::vector(16, large), .first_sample_id = "even"};
  PlanRequest plan_request = request(24);
  plan_request.constraints.micro_batch_size = 2;
  plan_request.workload = {.candidates = {outlier, even}, .global_batch_size = 16};
  const Plan plan = make_plan(plan_request);
  expect_fits(plan);
  for (const auto& candidate : plan_request.workload.candidates) {
    EXPECT_TRUE(dry_run(plan_request, plan.best.step_config, candidate).fits) << candidate.first_sample_id;
  }
}

/// A value behind "key=".
std::string get_value(const std::string& argument) {
  return argument.substr(argument.find('=') + 1);
}

/// What a suggestion asks for, done to the request word by word. False for a word that is not known here.
bool apply(const std::vector<std::string>& arguments, PlanRequest& request) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string key = arguments[i].substr(0, arguments[i].find('='));
    const std::string value = key == arguments[i] ? "" : get_value(arguments[i]);
    const bool is_auto = value == "auto";
    if (key == "memory.recompute") {
      request.constraints.recompute.text = value;
    } else if (key == "training.micro_batch_size") {
      request.constraints.micro_batch_size = is_auto ? std::nullopt : std::optional{std::stoll(value)};
    } else if (key == "memory.mode" && value == "aggressive") {
      request.mode = MemoryMode::kAggressive;
    } else if (key == "memory.limit_gb") {
      request.limit_gigabytes = is_auto ? std::nullopt : std::optional{std::stod(value)};
    } else if (key == "training.optimizer_states" && value == "8bit") {
      request.job.optimizer.states = engine::OptimizerStates::k8Bit;
    } else if (key == "model.freeze_vision_tower" && value == "true") {
      request.job.frozen.vision_tower = true;
      if (request.job.lora) request.job.lora->excluded_components.push_back(nn::Component::kVisionTower);
    } else if (key == "lora.rank") {
      request.job.lora = nn::LoraSettings{.rank = std::stoll(value)};
    } else if (key == "model.quantization") {
      request.job.quantization = value == "nf4" ? nn::Quantization::kNf4 : nn::Quantization::kInt8;
    } else if (key == "--images") {
      const auto limited = request.sample_limits.front().measure(std::stoll(arguments[++i]), true);
      request.workload = limited->workload;
    } else if (key == "--gpu-gb") {
      request.target = make_target_gpu(std::stod(arguments[++i]));
    } else {
      return false;
    }
  }
  return !arguments.empty();
}

struct UnfitCase {
  const char* name;
  double gpu_gigabytes;
  std::optional<double> limit_gigabytes;
  StepConstraints constraints;
  int64_t images;

  friend std::ostream& operator<<(std::ostream& out, const UnfitCase& unfit_case) { return out << unfit_case.name; }
};

/// Whatever is said to make it fit does.
class UnfitPlanTest : public PlanTest, public testing::WithParamInterface<UnfitCase> {};

TEST_P(UnfitPlanTest, EverySuggestionMakesItFit) {
  PlanRequest plan_request = request(GetParam().gpu_gigabytes);
  plan_request.limit_gigabytes = GetParam().limit_gigabytes;
  plan_request.constraints = GetParam().constraints;
  plan_request.workload = make_workload(model_.shape({.images = GetParam().images}), 4);
  plan_request.flags = {.gpu = "--gpu-gb {}", .gpu_by_size = true};
  plan_request.sample_limits = {{.argument_format = "--images {}",
                                 .current = GetParam().images,
                                 .find_min = [] { return int64_t{1}; },
                                 .multiple = 1,
                                 .description = "fewer images",
                                 .measure = [&](int64_t images, bool) -> std::optional<LimitedSamples> {
                                   return LimitedSamples{.workload =
                                                             make_workload(model_.shape({.images = images}), 4)};
                                 }}};
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  EXPECT_GT(plan.best.peaks.reserved_bytes, plan.limit.limit_bytes) << "what needs least needs too much";
  ASSERT_THAT(plan.suggestions, Not(IsEmpty()));
  for (const auto& suggestion : plan.suggestions) {
    SCOPED_TRACE(suggestion.text());
    EXPECT_TRUE(suggestion.makes_it_fit);
    PlanRequest changed = plan_request;
    ASSERT_TRUE(apply(suggestion.arguments, changed)) << "each can be followed";
    const Plan changed_plan = make_plan(changed);
    EXPECT_TRUE(changed_plan.fits) << changed_plan.best.peaks.reserved_bytes << " of "
                                   << changed_plan.limit.limit_bytes;
  }
}

StepConstraints make_constraints(std::optional<int64_t> micro_batch, const std::string& recompute) {
  StepConstraints constraints;
  constraints.micro_batch_size = micro_batch;
  constraints.recompute.text = recompute;
  return constraints;
}

/// On which the job would fit if it needed a tenth less.
TargetGpu make_slightly_too_small_gpu(const PlanRequest& request) {
  PlanRequest small = request;
  small.target = make_target_gpu(1);
  const Plan plan = make_plan(small);
  return make_target_gpu(0.93 * static_cast<double>(plan.total_bytes()) / 1e9);
}

/// Where a person's own limit is what is in the way, no other card is named.
TEST_F(PlanTest, SuggestsAHigherLimitOnTheSameGpu) {
  for (const bool has_gpu_flag : {false, true}) {
    PlanRequest plan_request = request(24);
    plan_request.limit_gigabytes = 4.0;
    plan_request.workload = make_workload(one_image_, 4);
    if (has_gpu_flag) plan_request.flags = {.gpu = "--gpu {}"};
    const Plan plan = make_plan(plan_request);
    ASSERT_FALSE(plan.fits);
    std::vector<std::string> texts;
    for (const auto& suggestion : plan.suggestions) texts.push_back(suggestion.text());
    EXPECT_THAT(texts, Contains(HasSubstr("memory.limit_gb=")));
    EXPECT_THAT(texts, Not(Contains(HasSubstr("card of"))));
    EXPECT_THAT(texts, Not(Contains(HasSubstr("--gpu"))));
  }
}

/// Micro-batch and recomputation are fixed, and undoing both is not enough.
TEST_F(PlanTest, CombinesRelaxedConstraintsWithAnotherChange) {
  PlanRequest plan_request = request(5);
  plan_request.job.lora = nn::LoraSettings{.rank = 16};
  plan_request.workload = make_workload(one_image_, 4);
  plan_request.constraints = make_constraints(4, "none");
  PlanRequest relaxed_request = plan_request;
  relaxed_request.constraints = {};
  plan_request.target = relaxed_request.target = make_slightly_too_small_gpu(relaxed_request);
  ASSERT_FALSE(make_plan(relaxed_request).fits);
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  bool is_found = false;
  for (const auto& suggestion : plan.suggestions) {
    SCOPED_TRACE(suggestion.text());
    const auto& arguments = suggestion.arguments;
    if (std::ranges::find(arguments, "training.micro_batch_size=auto") == arguments.end()) continue;
    EXPECT_THAT(arguments, Contains("memory.recompute=auto"));
    EXPECT_GT(arguments.size(), 2U);
    PlanRequest changed = plan_request;
    ASSERT_TRUE(apply(arguments, changed));
    EXPECT_TRUE(make_plan(changed).fits);
    is_found = true;
    break;
  }
  EXPECT_TRUE(is_found);
}

/// With a card that is as it is, as in a run, no flag is named.
TEST_F(PlanTest, SuggestsALargerGpuWithoutAFlag) {
  PlanRequest plan_request = request(3);
  plan_request.workload = make_workload(one_image_, 4);
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  const Suggestion& last = plan.suggestions.back();
  EXPECT_THAT(last.arguments, IsEmpty());
  EXPECT_THAT(last.text(), HasSubstr("a card of "));
  for (const auto& suggestion : plan.suggestions) EXPECT_THAT(suggestion.text(), Not(HasSubstr("--")));
}

/// What needs most of two batches at the least choices counts, whichever needed more at others.
TEST_F(PlanTest, TheMinimumIsThatOfTheWorstBatch) {
  PlanRequest plan_request = request(3);
  const SampleBatch text_batch{.shapes = {model_.shape({.images = 0, .text_tokens = 9000, .label_tokens = 3000})},
                               .first_sample_id = "texts"};
  const SampleBatch image_batch{.shapes = {model_.shape({.images = 2, .text_tokens = 64, .label_tokens = 16})},
                                .first_sample_id = "pictures"};
  plan_request.workload = {.candidates = {text_batch, image_batch}, .global_batch_size = 4};
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  for (const auto& candidate : plan_request.workload.candidates) {
    EXPECT_LE(dry_run(plan_request, plan.best.step_config, candidate).peaks.reserved_bytes,
              plan.best.peaks.reserved_bytes)
        << candidate.first_sample_id;
  }
}

TEST_F(PlanTest, HugeSamplesArePlannedOneByOne) {
  PlanRequest plan_request = request(24);
  plan_request.workload = make_workload(model_.shape({.images = 0, .text_tokens = 1'200'000}), 2);
  plan_request.with_suggestions = false;
  const Plan plan = make_plan(plan_request);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.best.step_config.micro_batch_size, 1);
}

INSTANTIATE_TEST_SUITE_P(Because, UnfitPlanTest,
                         testing::Values(UnfitCase{"TheCardIsTooSmall", 4, {}, {}, 2},
                                         UnfitCase{"TheLimitIsTooLow", 24, 4.0, {}, 2},
                                         UnfitCase{"TheMicroBatchIsFixed", 12, {}, make_constraints(4, "none"), 1},
                                         UnfitCase{"RecomputationIsFixed", 8, {}, make_constraints({}, "none"), 2},
                                         UnfitCase{"TheMarginIsMissing", 5.75, {}, {}, 1}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::planner
