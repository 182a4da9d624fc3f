#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>

#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {
namespace {

TEST(EventTest, IsOneJsonLine) {
  const RunEvent event{
      .step = 7, .kind = EventKind::kOomSplit, .message = "halved\n\xff", .ids = {"a\"b", "c"}, .time = 1.5};
  EXPECT_EQ(event.to_json_line(),
            "{\"step\":7,\"time\":1.5,\"kind\":\"oom_split\",\"message\":\"halved\\n\xef\xbf\xbd\","
            "\"ids\":[\"a\\\"b\",\"c\"]}");
}

TEST(EventTest, TimeIsNow) {
  const double before = get_unix_seconds();
  EXPECT_GT(before, 1.7e9) << "seconds since 1970";
  EXPECT_GE(RunEvent{}.time, before);
  EXPECT_LT(RunEvent{}.time, before + 60);
}

TEST(EventTest, EachKindHasItsName) {
  std::set<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(EventKind::kFailed); ++kind) {
    names.insert(to_string(static_cast<EventKind>(kind)));
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("oom_split", "foreseen_split", "anomaly", "skipped_step",
                                                   "memory_growth", "memory_full", "cache_emptied", "twin", "resumed",
                                                   "changed", "fewer_answers", "checkpoint", "stopped", "failed"));
}

}  // namespace
}  // namespace vlmtrain::report
