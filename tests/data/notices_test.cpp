#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/captured_log.h"
#include "vlmtrain/data/sample/statistics.h"

namespace vlmtrain::data {
namespace {

using testing::HasSubstr;

constexpr const char* kSource = R"(key "source" of a record)";
constexpr const char* kDetail = R"(key "detail" of an image block)";
constexpr const char* kFrames = "frames that are not looked at";

NoticeCounts make_counts() {
  NoticeCounts counts;
  counts.add("a", {{kSource, "web"}});
  counts.add("b", {{kSource, "book"}, {kDetail, "high"}, {kDetail, "low"}});
  counts.add("c", {{kFrames, ""}});
  return counts;
}

TEST(NoticeCounts, CountsSamplesByKindAndKeepsTheFirstExample) {
  const auto counts = make_counts();
  ASSERT_EQ(counts.kinds().size(), 3U);
  EXPECT_EQ(counts.kinds().at(kSource), (NoticeCounts::Count{.samples = 2, .id = "a", .example = "web"}));
  EXPECT_EQ(counts.kinds().at(kDetail), (NoticeCounts::Count{.samples = 1, .id = "b", .example = "high"}));
  EXPECT_EQ(counts.kinds().at(kFrames), (NoticeCounts::Count{.samples = 1, .id = "c", .example = ""}));
  EXPECT_TRUE(NoticeCounts().empty());
}

TEST(NoticeCounts, ReadsItsJson) {
  const auto counts = make_counts();
  EXPECT_EQ(counts.to_json().at(1).dump(), R"({"kind":"key \"detail\" of an image block","samples":1,)"
                                           R"("example":{"id":"b","value":"high"}})");
  EXPECT_EQ(NoticeCounts::from_json(counts.to_json()), counts);
  EXPECT_EQ(NoticeCounts().to_json().dump(), "[]");
  EXPECT_THROW(NoticeCounts::from_json({{{"kind", 3}}}), nlohmann::json::exception);
}

TEST(NoticeCounts, BoundsTheNumberOfKinds) {
  NoticeCounts counts;
  for (int i = 0; i < 1000; ++i) counts.add("s", {{fmt::format("key \"{}\" of a record", i), ""}});
  EXPECT_EQ(counts.kinds().size(), kMaxNoticeKinds + 1);
  EXPECT_EQ(counts.kinds().at(kOtherNoticesKind).samples, 1000 - static_cast<int64_t>(kMaxNoticeKinds));
  const CapturedLog log;
  log_notices(counts, "train.json", 1000);
  EXPECT_EQ(log.lines(), 21);
  EXPECT_THAT(log.text(), HasSubstr("181 more kinds"));
}

TEST(NoticeCounts, LogsKindCountAndExampleOnce) {
  const CapturedLog log;
  log_notices(make_counts(), "train.json", 4);
  EXPECT_EQ(log.lines(), 3);
  EXPECT_THAT(log.text(),
              HasSubstr(R"(warning: data train.json: key "source" of a record is not read: 2 of 4 samples, )"
                        R"(such as sample a: web; list it in data.ignore_keys)"));
  EXPECT_THAT(log.text(), HasSubstr("frames that are not looked at: 1 of 4 samples, such as sample c\n"));
}

TEST(NoticeCounts, LogsNothingWithoutNotices) {
  const CapturedLog log;
  log_notices({}, "train.json", 4);
  UniqueNoticeLogger().log({}, "train.json");
  EXPECT_EQ(log.lines(), 0);
}

TEST(UniqueNoticeLogger, LogsEachKindOnce) {
  NoticeCounts counts;
  UniqueNoticeLogger logger;
  const CapturedLog log;
  counts.add("a", {{kSource, "web"}});
  logger.log(counts, "train.json");
  EXPECT_EQ(log.lines(), 1);
  counts.add("b", {{kSource, "book"}});
  logger.log(counts, "train.json");
  EXPECT_EQ(log.lines(), 1);
  counts.add("c", {{kFrames, "3 of 8"}});
  logger.log(counts, "train.json");
  EXPECT_EQ(log.lines(), 2);
  EXPECT_THAT(log.text(), HasSubstr("first found in sample c: 3 of 8; ledger.json counts"));
  UniqueNoticeLogger resumed_logger;
  resumed_logger.mark_logged(counts);
  resumed_logger.log(counts, "train.json");
  EXPECT_EQ(log.lines(), 2) << "a run that resumes has logged them";
}

}  // namespace
}  // namespace vlmtrain::data
