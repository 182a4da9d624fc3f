#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "planner/plan_fixture.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Returns the value of "key=value".
std::string get_value(const std::string& argument) {
  return argument.substr(argument.find('=') + 1);
}

/// Applies the arguments of a suggestion to the request. Returns false for an unknown argument.
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
      request.job.optimizer.state_dtype = engine::OptimizerStateDtype::k8Bit;
    } else if (key == "memory.offload") {
      request.job.offload = value == "optimizer" ? engine::Offload::kOptimizer
                            : value == "weights" ? engine::Offload::kWeights
                                                 : engine::Offload::kGradients;
    } else if (key == "memory.offload_activations" && value == "true") {
      request.job.offload_activations = true;
    } else if (key == "model.freeze_vision_tower" && value == "true") {
      request.job.frozen_parts.vision_tower = true;
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

/// Each suggestion that claims to make the plan fit does so.
class UnfitPlanTest : public PlanTest, public testing::WithParamInterface<UnfitCase> {};

TEST_P(UnfitPlanTest, EverySuggestionMakesItFit) {
  PlanRequest plan_request = request(GetParam().gpu_gigabytes);
  plan_request.limit_gigabytes = GetParam().limit_gigabytes;
  plan_request.constraints = GetParam().constraints;
  const int64_t global_batch = GetParam().constraints.micro_batch_size.value_or(2);
  plan_request.workload = make_workload(make_wide_images(GetParam().images), global_batch);
  plan_request.flags = {.gpu_flag_format = "--gpu-gb {}", .selects_gpu_by_size = true};
  plan_request.sample_limits = {{.argument_format = "--images {}",
                                 .max_useful_value = GetParam().images,
                                 .find_min = [] { return int64_t{1}; },
                                 .granularity = 1,
                                 .description = "fewer images",
                                 .measure = [&](int64_t images, bool) -> std::optional<LimitedSamples> {
                                   return LimitedSamples{.workload =
                                                             make_workload(make_wide_images(images), global_batch)};
                                 }}};
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  EXPECT_GT(plan.best_estimate.peaks.reserved_bytes, plan.limit.limit_bytes) << "what needs least needs too much";
  ASSERT_THAT(plan.suggestions, Not(IsEmpty()));
  for (const auto& suggestion : plan.suggestions) {
    SCOPED_TRACE(suggestion.text());
    EXPECT_TRUE(suggestion.makes_plan_fit);
    PlanRequest changed = plan_request;
    changed.with_suggestions = false;
    ASSERT_TRUE(apply(suggestion.arguments, changed)) << "each can be followed";
    const Plan changed_plan = make_plan(changed);
    EXPECT_TRUE(changed_plan.fits) << changed_plan.best_estimate.peaks.reserved_bytes << " of "
                                   << changed_plan.limit.limit_bytes;
  }
}

StepConstraints make_constraints(std::optional<int64_t> micro_batch, const std::string& recompute) {
  StepConstraints constraints;
  constraints.micro_batch_size = micro_batch;
  constraints.recompute.text = recompute;
  return constraints;
}

/// A GPU on which the job would fit if it needed a tenth less.
TargetGpu make_slightly_too_small_gpu(const PlanRequest& request) {
  PlanRequest small = request;
  small.target = make_target_gpu(1);
  small.with_suggestions = false;
  const Plan plan = make_plan(small);
  return make_target_gpu(0.93 * static_cast<double>(plan.total_bytes()) / 1e9);
}

/// If the user's own limit is the obstacle, no other GPU is suggested.
TEST_F(PlanTest, SuggestsAHigherLimitOnTheSameGpu) {
  for (const bool has_gpu_flag : {false, true}) {
    PlanRequest plan_request = request(24);
    plan_request.limit_gigabytes = 4.0;
    plan_request.workload = make_workload(wide_image_, 2);
    if (has_gpu_flag) plan_request.flags = {.gpu_flag_format = "--gpu {}"};
    const Plan plan = make_plan(plan_request);
    ASSERT_FALSE(plan.fits);
    std::vector<std::string> texts;
    for (const auto& suggestion : plan.suggestions) texts.push_back(suggestion.text());
    EXPECT_THAT(texts, Contains(HasSubstr("memory.limit_gb=")));
    EXPECT_THAT(texts, Not(Contains(HasSubstr("GPU with"))));
    EXPECT_THAT(texts, Not(Contains(HasSubstr("--gpu"))));
  }
}

/// Micro-batch size and recomputation are set, and removing both constraints does not suffice.
TEST_F(PlanTest, CombinesRelaxedConstraintsWithAnotherChange) {
  PlanRequest plan_request = request(5);
  plan_request.job.lora = nn::LoraSettings{.rank = 16};
  plan_request.workload = make_workload(wide_image_, 4);
  plan_request.constraints = make_constraints(4, "none");
  PlanRequest relaxed_request = plan_request;
  relaxed_request.constraints = {};
  relaxed_request.with_suggestions = false;
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
    changed.with_suggestions = false;
    ASSERT_TRUE(apply(arguments, changed));
    EXPECT_TRUE(make_plan(changed).fits);
    is_found = true;
    break;
  }
  EXPECT_TRUE(is_found);
}

/// In a run, which cannot change its GPU, no flag is suggested.
TEST_F(PlanTest, SuggestsALargerGpuWithoutAFlag) {
  PlanRequest plan_request = request(3);
  plan_request.workload = make_workload(wide_image_, 2);
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  const Suggestion& last = plan.suggestions.back();
  EXPECT_THAT(last.arguments, IsEmpty());
  EXPECT_THAT(last.text(), HasSubstr("a GPU with "));
  for (const auto& suggestion : plan.suggestions) EXPECT_THAT(suggestion.text(), Not(HasSubstr("--")));
}

/// The batch with the higher peak at the minimum config counts, not the one with the higher peak at
/// other configs.
TEST_F(PlanTest, TheMinimumIsThatOfTheWorstBatch) {
  PlanRequest plan_request = request(3);
  const SampleBatch text_batch{.shapes = {model_.shape({.images = 0, .text_tokens = 9000, .label_tokens = 3000})},
                               .first_sample_id = "texts"};
  const SampleBatch image_batch{.shapes = {model_.shape({.images = 2, .text_tokens = 64, .label_tokens = 16})},
                                .first_sample_id = "pictures"};
  plan_request.workload = {.worst_batches = {text_batch, image_batch}, .global_batch_size = 2};
  plan_request.with_suggestions = false;
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  for (const auto& candidate : plan_request.workload.worst_batches) {
    EXPECT_LE(dry_run(plan_request, plan.best_estimate.step_config, candidate).peaks.reserved_bytes,
              plan.best_estimate.peaks.reserved_bytes)
        << candidate.first_sample_id;
  }
}

TEST_F(PlanTest, HugeSamplesArePlannedOneByOne) {
  PlanRequest plan_request = request(24);
  plan_request.workload = make_workload(model_.shape({.images = 0, .text_tokens = 1'200'000}), 2);
  plan_request.with_suggestions = false;
  const Plan plan = make_plan(plan_request);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.best_estimate.step_config.micro_batch_size, 1);
}

INSTANTIATE_TEST_SUITE_P(Because, UnfitPlanTest,
                         testing::Values(UnfitCase{"TheCardIsTooSmall", 4, {}, {}, 2},
                                         UnfitCase{"TheLimitIsTooLow", 24, 4.0, {}, 2},
                                         UnfitCase{"TheMicroBatchIsFixed", 8, {}, make_constraints(4, "none"), 1},
                                         UnfitCase{"RecomputationIsFixed", 7, {}, make_constraints({}, "none"), 2},
                                         UnfitCase{"TheMarginIsMissing", 4.8, {}, {}, 1}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::planner
