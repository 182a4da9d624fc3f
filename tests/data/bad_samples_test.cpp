#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/captured_log.h"
#include "data/fake_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/loader/loader.h"

namespace vlmtrain::data {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(RecordProblemsTest, AreRecordedInTheLedgerByPolicy) {
  const std::map<int64_t, SampleProblem> problems{
      {1, {.reason = "unreadable image", .message = "b is not there"}},
      {2, {.reason = "too long", .message = "c is long", .is_dropped = true}}};
  TextColumn ids;
  for (const char* id : {"a", "b", "c"}) ids.push_back(id);
  Ledger fail_ledger("d", 3), skip_ledger("d", 3);
  add_problems_to_ledger(problems, ids, BadSamplePolicy::kFail, fail_ledger);
  add_problems_to_ledger(problems, ids, BadSamplePolicy::kSkip, skip_ledger);
  EXPECT_EQ(fail_ledger.status(1), SampleStatus::kFailed);
  EXPECT_EQ(fail_ledger.status(2), SampleStatus::kDropped) << "data.on_too_long=drop is not a failure";
  EXPECT_EQ(skip_ledger.status(1), SampleStatus::kDropped);
  EXPECT_EQ(skip_ledger.count(SampleStatus::kDropped), 2);
  EXPECT_EQ(fail_ledger.to_json()["problems"][0]["id"], "b");
}

TEST(ReportProblems, NamesTheFirstAndCountsTheRest) {
  auto records = make_records(9);
  TextColumn ids(9);
  for (int64_t i = 0; i < 9; ++i) ids.set(i, records[i].id);
  std::map<int64_t, SampleProblem> problems;
  for (int64_t i = 1; i < 8; ++i) problems[i] = {"too long", fmt::format("sample s{} is too long", i)};
  records[2].problem = "no turns";
  Ledger ledger("train.json", 9);
  try {
    report_problems(problems, ids, ledger, BadSamplePolicy::kFail, records);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), HasSubstr("train.json: 7 of 9 samples cannot be used"));
    EXPECT_THAT(error.what(), HasSubstr("line 2: sample s1 is too long\n"));
    EXPECT_THAT(error.what(), HasSubstr("line 3, sample s2: no turns; correct the record\n"));
    EXPECT_THAT(error.what(), Not(HasSubstr("s6")));
    EXPECT_THAT(error.what(), HasSubstr("and 2 more"));
  }
  EXPECT_EQ(ledger.count(SampleStatus::kFailed), 7);
  Ledger skipping("train.json", 9);
  report_problems(problems, ids, skipping, BadSamplePolicy::kSkip, records);
  EXPECT_EQ(skipping.count(SampleStatus::kDropped), 7);
}

TEST(LoaderBadSamples, ErrorExplainsIgnoredKeysToRunsOfOlderVersions) {
  io::InMemoryRecords records = make_records(4);
  records[2].problem = "weight of a turn is 0, which is not supported; list it in data.ignore_keys to pass over it";
  const FakeProcessor processor;
  const auto get_error = [&](bool earlier_version_ignored_keys) -> std::string {
    Ledger ledger("train.json", 4);
    SingleSourceLoader loader(records, processor,
                              {.global_batch_size = 4, .earlier_version_ignored_keys = earlier_version_ignored_keys}, 1,
                              {}, ledger);
    try {
      loader.next();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(get_error(true), testing::AllOf(HasSubstr("data.on_bad_sample=skip"), HasSubstr("version that started")));
  EXPECT_THAT(get_error(false), testing::Not(HasSubstr("version that started")));
  records[2].problem = "no turns";
  EXPECT_THAT(get_error(true), testing::Not(HasSubstr("version that started"))) << "it was bad before";
}

TEST(LoaderBadSamples, SkipsBadDataOfAnyKind) {
  const auto records = make_records(3);
  const FakeProcessor processor([](int64_t index) {
    if (index == 1) throw data_error("no image; put it there");
  });
  Ledger ledger("train.json", 3);
  const CapturedLog log;
  SingleSourceLoader loader(records, processor, {.global_batch_size = 3, .on_bad_sample = BadSamplePolicy::kSkip}, 0,
                            {}, ledger);
  loader.next();
  EXPECT_EQ(ledger.to_json()["reasons"].dump(), R"({"bad data":1})");
}

TEST(LoaderBadSamples, LimitsWarningsAboutBadSamples) {
  const auto records = make_records(100);
  const FakeProcessor processor([](int64_t index) {
    if (index % 2 == 0) throw_too_long(index);
  });
  Ledger ledger("train.json", 100);
  const CapturedLog log;
  {
    SingleSourceLoader loader(records, processor,
                              {.global_batch_size = 50, .num_workers = 2, .on_bad_sample = BadSamplePolicy::kSkip}, 0,
                              {}, ledger);
    for (int64_t step = 0; step < 4; ++step) loader.next();
  }
  EXPECT_EQ(log.lines(), 21);
  EXPECT_THAT(log.text(), HasSubstr("30 more samples are dropped, 50 of 100 in all"));
}

}  // namespace
}  // namespace vlmtrain::data
