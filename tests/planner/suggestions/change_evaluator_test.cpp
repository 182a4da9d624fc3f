#include "planner/suggestions/change_evaluator.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class JobChangeTest : public testing::Test {
 protected:
  ChangeEvaluator::PlanInputs plan_inputs() const {
    return {job_, workload_, constraints_, limits_, flags_, has_bf16_};
  }

  static std::vector<std::string> join_arguments(const std::vector<JobChange>& changes) {
    std::vector<std::string> texts;
    for (const auto& change : changes) texts.push_back(fmt::format("{}", fmt::join(change.arguments, " ")));
    return texts;
  }

  Job job_;
  bool has_bf16_ = true;

 private:
  const Workload workload_;
  const StepConstraints constraints_;
  const std::vector<SampleLimit> limits_;
  const FlagSyntax flags_;
};

TEST_F(JobChangeTest, TrainsLessWhileSomethingIsTrained) {
  EXPECT_THAT(join_arguments(list_fewer_parameter_changes(plan_inputs())),
              ElementsAre("model.freeze_vision_tower=true", "lora.rank=16"));
  EXPECT_TRUE(list_fewer_parameter_changes(plan_inputs())[0].job.frozen_parts.vision_tower);
  EXPECT_EQ(list_fewer_parameter_changes(plan_inputs())[1].job.lora->rank, 16);
  job_.frozen_parts.vision_tower = true;
  EXPECT_THAT(join_arguments(list_fewer_parameter_changes(plan_inputs())), ElementsAre("lora.rank=16"));
  job_.frozen_parts = {.language_model = true};
  EXPECT_THAT(join_arguments(list_fewer_parameter_changes(plan_inputs())), ElementsAre("lora.rank=16"))
      << "the tower is what is trained";
  job_.frozen_parts = {.vision_tower = true, .language_model = true};
  EXPECT_THAT(join_arguments(list_fewer_parameter_changes(plan_inputs())), ElementsAre("lora.rank=16"))
      << "the projector is trained";
  job_.frozen_parts.projector = true;
  EXPECT_THAT(list_fewer_parameter_changes(plan_inputs()), IsEmpty());
  job_.frozen_parts = {};
  job_.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(join_arguments(list_fewer_parameter_changes(plan_inputs())),
              ElementsAre("model.freeze_vision_tower=true"));
  EXPECT_THAT(list_fewer_parameter_changes(plan_inputs())[0].job.lora->excluded_components,
              ElementsAre(nn::Component::kVisionTower));
}

TEST_F(JobChangeTest, UsesFewerBits) {
  EXPECT_THAT(join_arguments(list_same_parameter_changes(plan_inputs())),
              ElementsAre("training.optimizer_states=8bit"));
  job_.optimizer.state_dtype = engine::OptimizerStateDtype::k8Bit;
  EXPECT_THAT(list_same_parameter_changes(plan_inputs()), IsEmpty());
  job_ = make_job_with_precision(job_, engine::Precision::kFp32);
  EXPECT_THAT(join_arguments(list_same_parameter_changes(plan_inputs())), ElementsAre("training.precision=bf16"));
  has_bf16_ = false;
  EXPECT_THAT(join_arguments(list_same_parameter_changes(plan_inputs())), ElementsAre("training.precision=fp16"));
  job_ = make_job_with_precision(job_, engine::Precision::kFp16);
  job_.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(join_arguments(list_same_parameter_changes(plan_inputs())),
              ElementsAre("model.quantization=int8", "model.quantization=nf4"));
  job_.quantization = nn::Quantization::kInt8;
  EXPECT_THAT(list_same_parameter_changes(plan_inputs()), IsEmpty());
}

TEST_F(JobChangeTest, TheSmallestJobIsLoraOnFourBits) {
  EXPECT_THAT(join_arguments(list_changes_to_smallest_job(plan_inputs())),
              ElementsAre("lora.rank=16 model.quantization=nf4"));
  job_.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(join_arguments(list_changes_to_smallest_job(plan_inputs())), ElementsAre("model.quantization=nf4"));
  job_.quantization = nn::Quantization::kNf4;
  EXPECT_THAT(list_changes_to_smallest_job(plan_inputs()), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::planner
