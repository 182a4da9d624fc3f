#include "planner/sample_remedy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

using testing::HasSubstr;

constexpr int64_t kBase = 1'000'000;
constexpr int64_t kBytesPerToken = 100;

/// Memory of which is known what a job takes: so much for each token of the largest sample.
class StraightLine final : public RemedyRehearsal {
 public:
  StraightLine(const Asked& asked, int64_t limit_bytes) : RemedyRehearsal(asked), limit_bytes_(limit_bytes) {}

  std::optional<int64_t> least_bytes(const Job& /*job*/, const Workload& workload,
                                     const FixedChoices& /*fixed*/) override {
    ++rehearsals;
    return kBase + kBytesPerToken * workload.candidates.front().shapes.front().tokens;
  }
  std::optional<Freed> plan_with(const FixedChoices& /*fixed*/) override { return std::nullopt; }
  int64_t limit_bytes() const override { return limit_bytes_; }
  int64_t total_bytes(int64_t bytes) const override { return bytes + 7; }
  std::vector<Suggestion> more_memory() const override { return {}; }

  int rehearsals = 0;

 private:
  int64_t limit_bytes_;
};

/// A limit of tokens, from 100'000 down to 1'000, of which 2'500 samples of 10'000 are longer than a third.
class SampleRemedyTest : public testing::Test {
 protected:
  std::optional<Suggestion> lowered(int64_t tokens_that_fit) {
    StraightLine rehearsal({job_, workload_, fixed_, limits_, words_}, kBase + kBytesPerToken * tokens_that_fit);
    auto found = lower(limit_, job_, fixed_, kBase + kBytesPerToken * limit_.now, rehearsal);
    rehearsals_ = rehearsal.rehearsals;
    return found;
  }

  static int64_t number_of(const Suggestion& suggestion) {
    return std::stoll(suggestion.arguments.at(0).substr(suggestion.arguments.at(0).find('=') + 1));
  }

  SampleLimit limit_{
      .form = "data.max_length={} data.on_bad_sample=skip",
      .now = 100'000,
      .least = [] { return int64_t{1'000}; },
      .unit = 250,
      .meaning = "takes no longer sample",
      .measure = [this](int64_t number, bool all) -> std::optional<LimitedSamples> {
        const int64_t tokens = all ? number + beyond_ : number;
        return LimitedSamples{
            .workload = {.candidates = {{.shapes = {{.tokens = tokens}}, .first_id = "a"}}, .global_batch_size = 1},
            .left_out = number < 33'000 ? left_out_ : 0,
            .samples = 10'000};
      }};
  int64_t beyond_ = 0;  // what all samples need more than the largest of before
  int64_t left_out_ = 2'500;
  int rehearsals_ = 0;

 private:
  const Job job_;
  const Workload workload_;
  const FixedChoices fixed_;
  const std::vector<SampleLimit> limits_;
  const CommandWords words_;
};

TEST_F(SampleRemedyTest, NamesALargeMultipleOfTheUnitThatFits) {
  for (const int64_t fits : {2'300, 12'345, 50'001, 99'000}) {
    SCOPED_TRACE(fits);
    const auto found = lowered(fits);
    ASSERT_TRUE(found);
    const int64_t number = number_of(*found);
    EXPECT_EQ(number % limit_.unit, 0);
    EXPECT_LE(number, fits);
    EXPECT_GT(number, 0.75 * static_cast<double>(fits));
    EXPECT_EQ(found->total_bytes, kBase + kBytesPerToken * number + 7);
    EXPECT_TRUE(found->makes_it_fit);
    EXPECT_LE(rehearsals_, 10);
  }
}

TEST_F(SampleRemedyTest, SaysHowManySamplesAreLeftOut) {
  EXPECT_THAT(lowered(20'000)->text(), HasSubstr("takes no longer sample, which leaves out 2,500 of 10,000 samples"));
  EXPECT_EQ(lowered(60'000)->note, "takes no longer sample");
  left_out_ = 5'001;
  EXPECT_FALSE(lowered(20'000)) << "that is another data set";
}

TEST_F(SampleRemedyTest, IsProvenWithAllSamples) {
  beyond_ = 3'000;
  const auto found = lowered(40'000);
  ASSERT_TRUE(found);
  EXPECT_LE(number_of(*found) + beyond_, 40'000);
}

TEST_F(SampleRemedyTest, ThereIsNoneWhereTheLeastIsTooMuchOrNothingIsLower) {
  EXPECT_FALSE(lowered(999));
  EXPECT_EQ(number_of(*lowered(1'000)), 1'000);
  limit_.now = 1'000;
  EXPECT_FALSE(lowered(1'000));
}

}  // namespace
}  // namespace vlmtrain::planner
