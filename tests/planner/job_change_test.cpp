#include "planner/job_change.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class JobChangeTest : public testing::Test {
 protected:
  RemedyRehearsal::Asked asked() const { return {job_, workload_, fixed_, limits_, words_, has_bf16_}; }

  static std::vector<std::string> words_of(const std::vector<JobChange>& changes) {
    std::vector<std::string> words;
    for (const auto& change : changes) words.push_back(fmt::format("{}", fmt::join(change.arguments, " ")));
    return words;
  }

  Job job_;
  bool has_bf16_ = true;

 private:
  const Workload workload_;
  const FixedChoices fixed_;
  const std::vector<SampleLimit> limits_;
  const CommandWords words_;
};

TEST_F(JobChangeTest, LessIsTrainedAsLongAsSomethingIs) {
  EXPECT_THAT(words_of(training_changes(asked())), ElementsAre("model.freeze_vision_tower=true", "lora.rank=16"));
  EXPECT_TRUE(training_changes(asked())[0].job.frozen.vision_tower);
  EXPECT_EQ(training_changes(asked())[1].job.lora->rank, 16);
  job_.frozen.vision_tower = true;
  EXPECT_THAT(words_of(training_changes(asked())), ElementsAre("lora.rank=16"));
  job_.frozen = {.language_model = true};
  EXPECT_THAT(words_of(training_changes(asked())), ElementsAre("lora.rank=16")) << "the tower is what is trained";
  job_.frozen = {};
  job_.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(words_of(training_changes(asked())), ElementsAre("model.freeze_vision_tower=true"));
  EXPECT_THAT(training_changes(asked())[0].job.lora->left_out, ElementsAre(nn::Component::kVisionTower));
}

TEST_F(JobChangeTest, NumbersAreHeldInFewerBits) {
  EXPECT_THAT(words_of(numeric_changes(asked())), ElementsAre("training.optimizer_states=8bit"));
  job_.optimizer.states = engine::OptimizerStates::k8Bit;
  EXPECT_THAT(numeric_changes(asked()), IsEmpty());
  job_ = with_precision(job_, engine::Precision::kFp32);
  EXPECT_THAT(words_of(numeric_changes(asked())), ElementsAre("training.precision=bf16"));
  has_bf16_ = false;
  EXPECT_THAT(words_of(numeric_changes(asked())), ElementsAre("training.precision=fp16"));
  job_ = with_precision(job_, engine::Precision::kFp16);
  job_.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(words_of(numeric_changes(asked())), ElementsAre("model.quantization=int8", "model.quantization=nf4"));
  job_.quantization = nn::Quantization::kInt8;
  EXPECT_THAT(numeric_changes(asked()), IsEmpty());
}

TEST_F(JobChangeTest, TheSmallestJobIsAdaptersOnFourBits) {
  EXPECT_THAT(words_of(smallest_job(asked())), ElementsAre("lora.rank=16 model.quantization=nf4"));
  job_.lora = nn::LoraSettings{.rank = 4};
  EXPECT_THAT(words_of(smallest_job(asked())), ElementsAre("model.quantization=nf4"));
  job_.quantization = nn::Quantization::kNf4;
  EXPECT_THAT(smallest_job(asked()), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::planner
