#include "vlmtrain/data/index/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/fake_processor.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

void expect_counts(const Ledger& ledger, int64_t used, int64_t dropped, int64_t failed, int64_t not_reached) {
  const auto json = ledger.to_json();
  EXPECT_EQ(json["used"], used);
  EXPECT_EQ(json["dropped"], dropped);
  EXPECT_EQ(json["failed"], failed);
  EXPECT_EQ(json["not_reached"], not_reached);
  EXPECT_EQ(json["samples"], used + dropped + failed + not_reached);
}

TEST(Ledger, CountsEachSampleOnce) {
  Ledger ledger("train.json", 5);
  expect_counts(ledger, 0, 0, 0, 5);
  ledger.mark_used(0);
  ledger.mark_used(0);
  ledger.mark_used(1);
  ledger.mark_dropped(2, "c", "too long", "c is too long");
  ledger.mark_dropped(2, "c", "too long", "c is too long");
  expect_counts(ledger, 2, 1, 0, 2);
  ledger.mark_failed(3, "d", "bad image", "d");
  expect_counts(ledger, 2, 1, 1, 1);
}

TEST(Ledger, KeepsTheWorseStatus) {
  Ledger ledger("train.json", 2);
  ledger.mark_used(0);
  ledger.mark_dropped(0, "a", "too long", "first");
  ledger.mark_used(0);
  ledger.mark_dropped(0, "a", "too long", "second");
  EXPECT_EQ(ledger.to_json()["problems"][0]["message"], "first");
  ledger.mark_failed(0, "a", "too long", "third");
  ledger.mark_dropped(0, "a", "too long", "fourth");
  EXPECT_EQ(ledger.to_json()["problems"][0]["message"], "third");
  expect_counts(ledger, 0, 0, 1, 1);
}

TEST(Ledger, ReportsShrunkSamples) {
  Ledger ledger("train.json", 4);
  const ShrinkInfo shrunk{.tokens = 15'326,
                          .pixels = 11'996'000,
                          .tokens_after = 8'100,
                          .pixels_after = 6'300'000,
                          .image_max_pixels = 6'400'000};
  ledger.mark_used(2);
  for (int epoch = 0; epoch < 2; ++epoch) ledger.mark_shrunk(2, "c", shrunk);
  const auto saved = ledger.to_json();
  EXPECT_EQ(saved["shrunk"].dump(),
            R"({"samples":1,"each":[{"index":2,"id":"c","tokens":[15326,8100],"pixels":[11996000,6300000],)"
            R"("image_max_pixels":6400000,"frame_max_pixels":0}]})");
  EXPECT_EQ(Ledger::restore(saved, "train.json", SampleOrder(4, 1), make_source_cursor(1, 0)).to_json()["shrunk"],
            saved["shrunk"]);
  auto outside = saved;
  outside["shrunk"]["each"][0]["index"] = 4;
  EXPECT_THROW(Ledger::restore(outside, "train.json", SampleOrder(4, 1), {}), UserError);
}

TEST(Ledger, JsonListsProblemsAndCountsReasons) {
  Ledger ledger("train.json", 4);
  ledger.mark_dropped(3, "d", "too long", "d is too long");
  ledger.mark_dropped(1, "b", "too long", "b is too long");
  ledger.mark_failed(2, "c", "bad image", "c has a bad image");
  EXPECT_EQ(ledger.to_json().dump(),
            R"({"dataset":"train.json","samples":4,"used":0,"dropped":2,"failed":1,"not_reached":1,)"
            R"("reasons":{"bad image":1,"too long":2},"problems":[)"
            R"({"index":1,"id":"b","status":"dropped","reason":"too long","message":"b is too long"},)"
            R"({"index":2,"id":"c","status":"failed","reason":"bad image","message":"c has a bad image"},)"
            R"({"index":3,"id":"d","status":"dropped","reason":"too long","message":"d is too long"}],)"
            R"("shrunk":{"samples":0,"each":[]},"notices":[],"notices_of":"used"})");
  EXPECT_EQ(Ledger("empty", 0).to_json()["problems"].dump(), "[]");
  EXPECT_EQ(Ledger("empty", 0).to_json()["reasons"].dump(), "{}");
}

TEST(Ledger, RestoresFromACursor) {
  const auto order = shuffle_epoch(6, 1, 0);
  Ledger before("train.json", 6);
  before.mark_used(order[0]);
  before.mark_used(order[1]);
  before.mark_dropped(order[2], "c", "too long", "c");
  before.mark_dropped(order[5], "f", "unusable record", "f");  // known from the start, not reached yet
  const Ledger restored = Ledger::restore(before.to_json(), "train.json", SampleOrder(6, 1), make_source_cursor(0, 3));
  EXPECT_EQ(restored.to_json(), before.to_json());
  expect_counts(restored, 2, 2, 0, 2);
  expect_counts(Ledger::restore(before.to_json(), "train.json", SampleOrder(6, 1), make_source_cursor(1, 0)), 4, 2, 0,
                0);
  expect_counts(Ledger::restore(Ledger("", 6).to_json(), "train.json", SampleOrder(6, 1), make_source_cursor(0, 0)), 0,
                0, 0, 6);
}

TEST(Ledger, CountsNoticesOncePerSample) {
  const std::vector<io::Notice> notices{{R"(key "source" of a record)", "web"}};
  const auto order = shuffle_epoch(6, 1, 0);
  const auto get_sample = [&](size_t i) { return order[i]; };
  Ledger before("train.json", 6);
  for (int epoch = 0; epoch < 3; ++epoch) before.mark_used(get_sample(0), "a", notices);
  before.mark_used(get_sample(1), "b");
  before.mark_used(get_sample(2), "c", notices);
  EXPECT_EQ(before.notices().kinds().begin()->second.samples, 2);
  const auto saved = before.to_json();
  EXPECT_EQ(saved["notices"][0]["samples"], 2);
  EXPECT_EQ(saved["notices"][0]["example"]["id"], "a");
  EXPECT_EQ(saved["notices_of"], "used");
  Ledger resumed = Ledger::restore(saved, "train.json", SampleOrder(6, 1), make_source_cursor(0, 3));
  resumed.mark_used(get_sample(0), "a", notices);
  resumed.mark_used(get_sample(3), "d", notices);
  EXPECT_EQ(resumed.to_json()["notices"][0]["samples"], 3) << "the next epoch counts none again";
  auto older = saved;
  older.erase("notices");
  older.erase("notices_of");
  EXPECT_TRUE(Ledger::restore(older, "train.json", SampleOrder(6, 1), make_source_cursor(0, 3)).notices().empty());
  auto wrong = saved;
  wrong["notices"][0].erase("samples");
  EXPECT_THROW(Ledger::restore(wrong, "train.json", SampleOrder(6, 1), make_source_cursor(0, 3)), UserError);
}

TEST(Ledger, DoesNotCountPrecountedNoticesAgain) {
  const std::vector<io::Notice> notices{{R"(key "source" of a record)", "web"}};
  NoticeCounts all;
  for (const char* id : {"a", "b", "c", "d"}) all.add(id, notices);
  Ledger ledger("train.json", 4);
  ledger.set_precounted_notices(all);
  ledger.mark_used(0, "a", notices);
  EXPECT_EQ(ledger.to_json()["notices"][0]["samples"], 4);
  EXPECT_EQ(ledger.to_json()["notices_of"], "all");
  Ledger resumed = Ledger::restore(ledger.to_json(), "train.json", SampleOrder(4, 1), make_source_cursor(0, 1));
  EXPECT_TRUE(resumed.has_precounted_notices());
  resumed.mark_used(1, "b", notices);
  resumed.mark_used(3, "d", notices);
  EXPECT_EQ(resumed.to_json()["notices"][0]["samples"], 4) << "though data.check_at_start is false from here on";
}

TEST(Ledger, CountsPixelNoticesWhenSamplesAreUsed) {
  const io::Notice record_notice{R"(key "source" of a record)", "web"}, pixel_notice{"an image of one color", "a.png"};
  NoticeCounts all;
  for (const char* id : {"a", "b", "c", "d"}) all.add(id, {record_notice});
  const auto order = shuffle_epoch(4, 1, 0);
  Ledger ledger("train.json", 4);
  ledger.set_precounted_notices(all);
  for (int epoch = 0; epoch < 2; ++epoch) ledger.mark_used(order[0], "a", {record_notice, pixel_notice});
  EXPECT_EQ(ledger.notices().kinds().at(record_notice.kind).samples, 4);
  EXPECT_EQ(ledger.notices().kinds().at(pixel_notice.kind).samples, 1);
  Ledger resumed = Ledger::restore(ledger.to_json(), "train.json", SampleOrder(4, 1), make_source_cursor(0, 1));
  resumed.set_precounted_notices(all);
  resumed.mark_used(order[1], "b", {record_notice, pixel_notice});
  EXPECT_EQ(resumed.notices().kinds().at(record_notice.kind).samples, 4);
  EXPECT_EQ(resumed.notices().kinds().at(pixel_notice.kind).samples, 2) << "those before the resume stay";
}

TEST(Ledger, RetriesAFailedSample) {
  const auto order = shuffle_epoch(3, 1, 0);
  Ledger before("train.json", 3);
  before.mark_used(order[0]);
  before.mark_failed(order[1], "b", "too long", "b");
  expect_counts(Ledger::restore(before.to_json(), "train.json", SampleOrder(3, 1), make_source_cursor(0, 1)), 1, 0, 0,
                2);
}

TEST(Ledger, RejectsALedgerOfAnotherDataSet) {
  const auto get_error = [](const nlohmann::ordered_json& saved) -> std::string {
    try {
      Ledger::restore(saved, "train.json", SampleOrder(6, 1), make_source_cursor(0, 0));
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(get_error(Ledger("train.json", 5).to_json()),
              testing::HasSubstr("train.json: has 6 samples, but the checkpoint has 5"));
  EXPECT_THAT(get_error({{"samples", 6}}), testing::HasSubstr("ledger cannot be read"));
  EXPECT_THAT(get_error("nonsense"), testing::HasSubstr("ledger cannot be read"));
  auto outside = Ledger("train.json", 6).to_json();
  outside["problems"].push_back({{"index", 6}, {"id", ""}, {"status", "dropped"}, {"reason", ""}, {"message", ""}});
  EXPECT_THAT(get_error(outside), testing::HasSubstr("sample 6 of a data set of 6"));
}

TEST(EpochProgress, IsTheShareOfUsableSamples) {
  const Ledger ledger("train.json", 8);
  const SampleOrder sample_order(8, 3);
  EpochProgress progress(ledger, sample_order);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(0, 0)), 0);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(0, 2)), 0.25);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(2, 6)), 2.75);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(1, 4)), 1.5) << "back again";
}

TEST(EpochProgress, AnEpochEndsWithItsLastUsableSample) {
  constexpr int64_t kSamples = 20;
  Ledger ledger("train.json", kSamples);
  const auto order = shuffle_epoch(kSamples, 7, 1);
  for (const size_t i : {2U, 9U, 18U, 19U}) ledger.mark_dropped(order[i], "s", "too long", "is too long");
  const SampleOrder sample_order(kSamples, 7);
  EpochProgress progress(ledger, sample_order);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(1, 2)), 1 + 2.0 / 16);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(1, 3)), 1 + 2.0 / 16) << "dropped samples do not count in the epoch";
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(1, 17)), 1 + 15.0 / 16);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(1, 18)), 2) << "what follows is dropped";
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(2, 0)), 2);
}

TEST(EpochProgress, FollowsSamplesDroppedDuringTheEpoch) {
  Ledger ledger("train.json", 10);
  const SampleOrder sample_order(10, 7);
  EpochProgress progress(ledger, sample_order);
  const auto order = shuffle_epoch(10, 7, 0);
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(0, 5)), 0.5);
  ledger.mark_dropped(order[4], "s", "does not fit into memory", "is too large");
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(0, 5)), 4.0 / 9);
  ledger.mark_dropped(order[9], "s", "unreadable image", "is cut off");
  EXPECT_DOUBLE_EQ(progress.at(make_source_cursor(0, 9)), 1);
}

}  // namespace

}  // namespace vlmtrain::data
