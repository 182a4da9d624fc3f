#include "vlmtrain/data/index/bad_samples.h"

#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

TEST(RecordProblemsTest, AreRecordedInTheLedgerByPolicy) {
  const std::map<int64_t, SampleProblem> problems{
      {1, {.reason = "unreadable image", .message = "b is not there"}},
      {2, {.reason = "too long", .message = "c is long", .is_dropped = true}}};
  TextColumn ids;
  for (const char* id : {"a", "b", "c"}) ids.push_back(id);
  Ledger fail_ledger("d", 3), skip_ledger("d", 3);
  record_problems(problems, ids, BadSamplePolicy::kFail, fail_ledger);
  record_problems(problems, ids, BadSamplePolicy::kSkip, skip_ledger);
  EXPECT_EQ(fail_ledger.status(1), SampleStatus::kFailed);
  EXPECT_EQ(fail_ledger.status(2), SampleStatus::kDropped) << "data.on_too_long=drop is no failure";
  EXPECT_EQ(skip_ledger.status(1), SampleStatus::kDropped);
  EXPECT_EQ(skip_ledger.count(SampleStatus::kDropped), 2);
  EXPECT_EQ(fail_ledger.to_json()["problems"][0]["id"], "b");
}

}  // namespace
}  // namespace vlmtrain::data
