#include "vlmtrain/data/data_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/fake_processor.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const io::Records> records_of(std::string prefix, int64_t count, const std::string& task = {}) {
  auto records = std::make_shared<io::RecordList>(make_records(count));
  for (int64_t i = 0; i < count; ++i) {
    (*records)[i].id = prefix + std::to_string(i);
    (*records)[i].task = task;
  }
  return records;
}

DataSet two_sources(Source first = {.path = "a.json", .task = {}, .image_root = {}}) {
  return DataSet({{.source = std::move(first), .records = records_of("a", 3, "caption")},
                  {.source = {.path = "b.json", .task = "vqa", .image_root = {}}, .records = records_of("b", 5)}});
}

Outlines outlines_of(const DataSet& data_set) {
  const FakeProcessor processor;
  return outline_samples(data_set, processor, {});
}

std::string refusal_of(const std::function<void()>& act, ExitCode code = ExitCode::kUsage) {
  try {
    act();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TaskShareSchedule shares_of(const nlohmann::ordered_json& value) {
  TaskShareSchedule shares;
  EXPECT_EQ(shares.set(value), std::nullopt);
  return shares;
}

TEST(DataSet, HasTheRecordsOfItsSourcesOneBehindTheOther) {
  const DataSet data_set = two_sources();
  ASSERT_EQ(data_set.size(), 8);
  EXPECT_EQ(data_set.at(2).id, "a2");
  EXPECT_EQ(data_set.at(3).id, "b0");
  EXPECT_EQ(data_set.text_at(7).place, "b.json, line 5");
  EXPECT_EQ(data_set.at(0).task, "caption");
  EXPECT_EQ(data_set.at(5).task, "vqa") << "the source's own";
}

TEST(DrawOrderOfDataSet, SourcesWithoutSharesAreOneLane) {
  const DataSet data_set = two_sources();
  const DrawOrder order = draw_order(data_set, {}, outlines_of(data_set), {.seed = 3});
  ASSERT_EQ(order.lanes(), 1);
  EXPECT_EQ(order.epoch(0, 0)->samples, epoch_order(8, 3, 0));
}

TEST(DrawOrderOfDataSet, RepeatIsAShareOfTheSizeAndWeightIsNot) {
  const DataSet repeated = two_sources({.path = "a.json", .repeat = 3, .task = {}, .image_root = {}});
  EXPECT_THAT(draw_order(repeated, {}, outlines_of(repeated), {}).chooser().shares(0), ElementsAre(9.0 / 14, 5.0 / 14));
  DataSet weighted(
      {{.source = {.path = "a", .weight = 1, .task = {}, .image_root = {}}, .records = records_of("a", 3)},
       {.source = {.path = "b", .weight = 3, .task = {}, .image_root = {}}, .records = records_of("b", 9)}});
  EXPECT_THAT(draw_order(weighted, {}, outlines_of(weighted), {}).chooser().shares(0), ElementsAre(0.25, 0.75));
}

TEST(DrawOrderOfDataSet, TasksWithSharesAreLanes) {
  const DataSet data_set = two_sources();
  const Outlines outlines = outlines_of(data_set);
  // FakeProcessor's samples have no task: the records' are what counts.
  const DrawOrder order = draw_order(data_set, shares_of({{"caption", 1}, {"vqa", 3}}), outlines, {});
  ASSERT_EQ(order.lanes(), 2);
  EXPECT_EQ(order.lane(0).name, "caption");
  EXPECT_THAT(order.lane(0).samples, ElementsAre(0, 1, 2));
  EXPECT_THAT(order.chooser().shares(0), ElementsAre(0.25, 0.75));
  const auto refused = [&](const nlohmann::ordered_json& shares) {
    return refusal_of([&] { draw_order(data_set, shares_of(shares), outlines, {}); });
  };
  EXPECT_THAT(refused({{"captoin", 1}, {"vqa", 1}}), HasSubstr("did you mean caption?"));
  EXPECT_THAT(refused({{"vqa", 1}}), HasSubstr("caption: has no share; give it one, which may be 0"));
  const DataSet weighted = two_sources({.path = "a.json", .weight = 3, .task = {}, .image_root = {}});
  EXPECT_THAT(refusal_of([&] {
                draw_order(weighted, shares_of({{"vqa", 1}}), outlines, {});
              }),
              HasSubstr("keep the shares of one kind"));
}

TEST(DrawOrderOfDataSet, ALaneWithoutAUsableSampleIsRefused) {
  const DataSet data_set = two_sources({.path = "a.json", .repeat = 2, .task = {}, .image_root = {}});
  Outlines outlines = outlines_of(data_set);
  for (int64_t i = 0; i < 3; ++i) outlines.shapes.remove(i);
  EXPECT_THAT(refusal_of([&] { draw_order(data_set, {}, outlines, {}); }, ExitCode::kBadData),
              HasSubstr("a.json: none of its 3 samples can be used"));
}

TEST(DrawOrderOfDataSet, WhatGoesByTheSizesNeedsALookAtAllSamples) {
  const DataSet data_set = two_sources();
  Outlines outlines = outlines_of(data_set);
  outlines.are_all = false;
  EXPECT_THAT(refusal_of([&] { draw_order(data_set, {}, outlines, {.packs = PackLimits{}}); }),
              HasSubstr("data.check_at_start"));
}

TEST(DrawOrderOfDataSet, ASampleThatIsLargerThanAPackIsBad) {
  const DataSet data_set = two_sources();
  Outlines outlines = outlines_of(data_set);
  outlines.shapes.set(4, {.tokens = 5000});
  refuse_larger_than_packs({.tokens = 4096}, outlines);
  ASSERT_TRUE(outlines.problems.contains(4));
  EXPECT_EQ(outlines.problems.at(4).reason, "larger than a pack");
  EXPECT_THAT(outlines.problems.at(4).message, HasSubstr("sample b1 has 5000 tokens"));
  const DrawOrder order = draw_order(data_set, {}, outlines, {.packs = PackLimits{.tokens = 4096}});
  EXPECT_EQ(order.samples_drawn(0), 7);
}

}  // namespace
}  // namespace vlmtrain::data
