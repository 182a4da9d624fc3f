#include "vlmtrain/data/sample/sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/fake_processor.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct MakeFunction {
  const char* name;
  Sample (*make)(const SampleProcessor& processor, const io::Record& record, int64_t index);
};

class MakeSample : public testing::TestWithParam<MakeFunction> {
 protected:
  std::string get_refusal(const std::string& expected_message) {
    try {
      GetParam().make(processor_, records_[2], 2);
    } catch (const SampleError& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected_message));
      return error.reason();
    }
    return "accepted";
  }

  FakeProcessor processor_;
  io::InMemoryRecords records_ = make_records(3);
};

TEST_P(MakeSample, RejectsARecordWithAProblem) {
  records_[2].problem = "it has no turns";
  EXPECT_EQ(get_refusal("sample s2 (line 3): it has no turns"), "unusable record");
  EXPECT_EQ(processor_.calls(), 0);
}

TEST_P(MakeSample, RejectsASampleWithoutLabels) {
  EXPECT_EQ(get_refusal(""), "accepted");
  records_[2].task = "unlabelled";
  EXPECT_EQ(get_refusal("sample s2 (line 3) has no label token"), "no label tokens");
}

INSTANTIATE_TEST_SUITE_P(
    Both, MakeSample,
    testing::Values(MakeFunction{"Whole", [](const SampleProcessor& processor, const io::Record& record,
                                             int64_t index) { return make_sample(processor, record, index); }},
                    MakeFunction{"Outline", make_header_sample}),
    [](const auto& instance) { return instance.param.name; });

TEST(MakeHeaderSample, ProcessesHeaders) {
  const FakeProcessor processor;
  const auto records = make_records(3);
  EXPECT_THAT(make_sample(processor, records[2], 2).token_ids, ElementsAre(1, 102));
  EXPECT_THAT(make_header_sample(processor, records[2], 2).token_ids, ElementsAre(1, 502));
}

}  // namespace
}  // namespace vlmtrain::data
