#include "vlmtrain/data/known_problems.h"

#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

TEST(KnownProblemsTest, EnterTheLedgerAsTheRunWouldHaveThem) {
  const std::map<int64_t, SampleProblem> problems{
      {1, {.reason = "unreadable image", .message = "b is not there"}},
      {2, {.reason = "too long", .message = "c is long", .is_dropped = true}}};
  TextColumn ids;
  for (const char* id : {"a", "b", "c"}) ids.push_back(id);
  Ledger fails("d", 3), skips("d", 3);
  enter_problems(problems, ids, BadSamplePolicy::kFail, fails);
  enter_problems(problems, ids, BadSamplePolicy::kSkip, skips);
  EXPECT_EQ(fails.status(1), SampleStatus::kFailed);
  EXPECT_EQ(fails.status(2), SampleStatus::kDropped) << "data.on_too_long=drop is no failure";
  EXPECT_EQ(skips.status(1), SampleStatus::kDropped);
  EXPECT_EQ(skips.count(SampleStatus::kDropped), 2);
  EXPECT_EQ(fails.to_json()["problems"][0]["id"], "b");
}

}  // namespace
}  // namespace vlmtrain::data
