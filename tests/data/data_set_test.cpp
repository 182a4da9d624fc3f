#include "vlmtrain/data/data_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/fake_processor.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const io::Records> make_records_of_task(std::string prefix, int64_t count,
                                                        const std::string& task = {}) {
  auto records = std::make_shared<io::InMemoryRecords>(make_records(count));
  for (int64_t i = 0; i < count; ++i) {
    (*records)[i].id = prefix + std::to_string(i);
    (*records)[i].task = task;
  }
  return records;
}

DataSet make_two_sources(Source first = {.path = "a.json", .task = {}, .image_root = {}}) {
  return DataSet(
      {{.source = std::move(first), .records = make_records_of_task("a", 3, "caption")},
       {.source = {.path = "b.json", .task = "vqa", .image_root = {}}, .records = make_records_of_task("b", 5)}});
}

SampleIndex index_data_set(const DataSet& data_set) {
  const FakeProcessor processor;
  return index_samples(data_set, processor, {});
}

std::string get_refusal(const std::function<void()>& act, ExitCode code = ExitCode::kUsage) {
  try {
    act();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TaskShareSchedule parse_shares(const nlohmann::ordered_json& value) {
  TaskShareSchedule shares;
  EXPECT_EQ(shares.set(value), std::nullopt);
  return shares;
}

TEST(DataSet, ConcatenatesTheRecordsOfItsSources) {
  const DataSet data_set = make_two_sources();
  ASSERT_EQ(data_set.size(), 8);
  EXPECT_EQ(data_set.at(2).id, "a2");
  EXPECT_EQ(data_set.at(3).id, "b0");
  EXPECT_EQ(data_set.at_without_media_bytes(7).location, "b.json, line 5");
  EXPECT_EQ(data_set.at(0).task, "caption");
  EXPECT_EQ(data_set.at(5).task, "vqa") << "the source's own";
}

TEST(MakeSampleOrder, SourcesWithoutSharesAreOneMixtureSource) {
  const DataSet data_set = make_two_sources();
  const SampleOrder order = make_sample_order(data_set, {}, index_data_set(data_set), {.seed = 3});
  ASSERT_EQ(order.num_sources(), 1);
  EXPECT_EQ(order.get_epoch_order(0, 0)->samples, shuffle_epoch(8, 3, 0));
}

TEST(MakeSampleOrder, RepeatDependsOnSizeAndWeightDoesNot) {
  const DataSet repeated = make_two_sources({.path = "a.json", .repeat = 3, .task = {}, .image_root = {}});
  EXPECT_THAT(make_sample_order(repeated, {}, index_data_set(repeated), {}).mixture_sampler().shares(0),
              ElementsAre(9.0 / 14, 5.0 / 14));
  DataSet weighted(
      {{.source = {.path = "a", .weight = 1, .task = {}, .image_root = {}}, .records = make_records_of_task("a", 3)},
       {.source = {.path = "b", .weight = 3, .task = {}, .image_root = {}}, .records = make_records_of_task("b", 9)}});
  EXPECT_THAT(make_sample_order(weighted, {}, index_data_set(weighted), {}).mixture_sampler().shares(0),
              ElementsAre(0.25, 0.75));
}

TEST(MakeSampleOrder, TasksWithSharesAreMixtureSources) {
  const DataSet data_set = make_two_sources();
  const SampleIndex sample_index = index_data_set(data_set);
  // FakeProcessor's samples have no task: the records' are what counts.
  const SampleOrder order = make_sample_order(data_set, parse_shares({{"caption", 1}, {"vqa", 3}}), sample_index, {});
  ASSERT_EQ(order.num_sources(), 2);
  EXPECT_EQ(order.source(0).name, "caption");
  EXPECT_THAT(order.source(0).samples, ElementsAre(0, 1, 2));
  EXPECT_THAT(order.mixture_sampler().shares(0), ElementsAre(0.25, 0.75));
  const auto get_share_refusal = [&](const nlohmann::ordered_json& shares) {
    return get_refusal([&] { make_sample_order(data_set, parse_shares(shares), sample_index, {}); });
  };
  EXPECT_THAT(get_share_refusal({{"captoin", 1}, {"vqa", 1}}), HasSubstr("did you mean caption?"));
  EXPECT_THAT(get_share_refusal({{"vqa", 1}}), HasSubstr("caption: has no share; give it one, which may be 0"));
  const DataSet weighted = make_two_sources({.path = "a.json", .weight = 3, .task = {}, .image_root = {}});
  EXPECT_THAT(get_refusal([&] {
                make_sample_order(weighted, parse_shares({{"vqa", 1}}), sample_index, {});
              }),
              HasSubstr("cannot be combined with weights or repeats"));
}

TEST(MakeSampleOrder, RejectsASourceWithoutAUsableSample) {
  const DataSet data_set = make_two_sources({.path = "a.json", .repeat = 2, .task = {}, .image_root = {}});
  SampleIndex sample_index = index_data_set(data_set);
  for (int64_t i = 0; i < 3; ++i) sample_index.shapes.mark_unknown(i);
  EXPECT_THAT(get_refusal([&] { make_sample_order(data_set, {}, sample_index, {}); }, ExitCode::kBadData),
              HasSubstr("a.json: none of its 3 samples can be used"));
}

TEST(MakeSampleOrder, PacksNeedACompleteIndex) {
  const DataSet data_set = make_two_sources();
  SampleIndex sample_index = index_data_set(data_set);
  sample_index.is_complete = false;
  EXPECT_THAT(get_refusal([&] { make_sample_order(data_set, {}, sample_index, {.pack_limits = PackLimits{}}); }),
              HasSubstr("data.check_at_start"));
}

TEST(MakeSampleOrder, RejectsSamplesLargerThanAPack) {
  const DataSet data_set = make_two_sources();
  SampleIndex sample_index = index_data_set(data_set);
  sample_index.shapes.set(4, {.tokens = 5000});
  reject_oversized_samples({.max_tokens = 4096}, sample_index);
  ASSERT_TRUE(sample_index.problems.contains(4));
  EXPECT_EQ(sample_index.problems.at(4).reason, "larger than a pack");
  EXPECT_THAT(sample_index.problems.at(4).message, HasSubstr("sample b1 has 5,000 tokens"));
  const SampleOrder order =
      make_sample_order(data_set, {}, sample_index, {.pack_limits = PackLimits{.max_tokens = 4096}});
  EXPECT_EQ(order.count_epoch_samples(0), 7);
}

}  // namespace
}  // namespace vlmtrain::data
