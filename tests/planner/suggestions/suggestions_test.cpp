#include "planner/suggestions/suggestions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

using testing::HasSubstr;

constexpr int64_t kBase = 1'000'000;
constexpr int64_t kBytesPerToken = 100;

/// An evaluator whose memory is linear in the tokens of the largest sample.
class LinearEvaluator final : public ChangeEvaluator {
 public:
  LinearEvaluator(const PlanInputs& plan_inputs, int64_t limit_bytes)
      : ChangeEvaluator(plan_inputs), limit_bytes_(limit_bytes) {}

  std::optional<int64_t> measure_min_bytes(const Job& /*job*/, const Workload& workload,
                                           const StepConstraints& /*constraints*/) override {
    ++num_dry_runs;
    return kBase + kBytesPerToken * workload.worst_batches.front().shapes.front().tokens;
  }
  std::optional<RelaxedPlan> replan(const StepConstraints& /*constraints*/) override { return std::nullopt; }
  int64_t limit_bytes() const override { return limit_bytes_; }
  int64_t total_bytes(int64_t bytes) const override { return bytes + 7; }
  std::vector<Suggestion> suggest_more_memory() const override { return {}; }

  int num_dry_runs = 0;

 private:
  int64_t limit_bytes_;
};

/// A limit of tokens, from 100'000 down to 1'000. Below a third of it, 2'500 of 10'000 samples are
/// dropped.
class SuggestLowerLimitTest : public testing::Test {
 protected:
  std::optional<Suggestion> suggest(int64_t fitting_tokens) {
    LinearEvaluator evaluator({job_, workload_, constraints_, limits_, flags_},
                              kBase + kBytesPerToken * fitting_tokens);
    auto suggestion =
        suggest_lower_limit(limit_, job_, constraints_, kBase + kBytesPerToken * limit_.max_useful_value, evaluator);
    num_dry_runs_ = evaluator.num_dry_runs;
    return suggestion;
  }

  static int64_t parse_limit(const Suggestion& suggestion) {
    return std::stoll(suggestion.arguments.at(0).substr(suggestion.arguments.at(0).find('=') + 1));
  }

  SampleLimit limit_{.argument_format = "data.max_length={} data.on_bad_sample=skip",
                     .max_useful_value = 100'000,
                     .find_min = [] { return int64_t{1'000}; },
                     .granularity = 250,
                     .description = "takes no longer sample",
                     .measure = [this](int64_t limit, bool all) -> std::optional<LimitedSamples> {
                       const int64_t tokens = all ? limit + unmeasured_tokens_ : limit;
                       return LimitedSamples{
                           .workload = {.worst_batches = {{.shapes = {{.tokens = tokens}}, .first_sample_id = "a"}},
                                        .global_batch_size = 1},
                           .num_dropped = limit < 33'000 ? num_dropped_ : 0,
                           .num_samples = 10'000};
                     }};
  int64_t unmeasured_tokens_ = 0;  // additional tokens of all samples compared with the largest ones
  int64_t num_dropped_ = 2'500;
  int num_dry_runs_ = 0;

 private:
  const Job job_;
  const Workload workload_;
  const StepConstraints constraints_;
  const std::vector<SampleLimit> limits_;
  const FlagSyntax flags_;
};

TEST_F(SuggestLowerLimitTest, SuggestsALargeMultipleThatFits) {
  for (const int64_t fitting_tokens : {2'300, 12'345, 50'001, 99'000}) {
    SCOPED_TRACE(fitting_tokens);
    const auto suggestion = suggest(fitting_tokens);
    ASSERT_TRUE(suggestion);
    const int64_t limit = parse_limit(*suggestion);
    EXPECT_EQ(limit % limit_.granularity, 0);
    EXPECT_LE(limit, fitting_tokens);
    EXPECT_GT(limit, 0.75 * static_cast<double>(fitting_tokens));
    EXPECT_EQ(suggestion->total_bytes, kBase + kBytesPerToken * limit + 7);
    EXPECT_TRUE(suggestion->makes_plan_fit);
    EXPECT_LE(num_dry_runs_, 10);
  }
}

TEST_F(SuggestLowerLimitTest, ReportsTheDroppedSamples) {
  EXPECT_THAT(suggest(20'000)->text(), HasSubstr("takes no longer sample, which drops 2,500 of 10,000 samples"));
  EXPECT_EQ(suggest(60'000)->note, "takes no longer sample");
  num_dropped_ = 5'001;
  EXPECT_FALSE(suggest(20'000)) << "that is another data set";
}

TEST_F(SuggestLowerLimitTest, IsVerifiedWithAllSamples) {
  unmeasured_tokens_ = 3'000;
  const auto suggestion = suggest(40'000);
  ASSERT_TRUE(suggestion);
  EXPECT_LE(parse_limit(*suggestion) + unmeasured_tokens_, 40'000);
}

TEST_F(SuggestLowerLimitTest, SuggestsNothingWhereTheMinimumDoesNotFit) {
  EXPECT_FALSE(suggest(999));
  EXPECT_EQ(parse_limit(*suggest(1'000)), 1'000);
  limit_.max_useful_value = 1'000;
  EXPECT_FALSE(suggest(1'000));
}

}  // namespace
}  // namespace vlmtrain::planner
