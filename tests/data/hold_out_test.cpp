#include "vlmtrain/data/index/hold_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "planner/user_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/options.h"

namespace vlmtrain::data {

namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(HoldOut, SplitsADataSetInTwo) {
  for (const int64_t samples : {2, 3, 19, 1000}) {
    for (const double hold_out_share : {1e-6, 0.05, 0.5, 0.999999}) {
      const HoldOutSplit split = draw_hold_out_split(samples, hold_out_share, 7);
      std::vector<int64_t> indices = split.train;
      indices.insert(indices.end(), split.held_out.begin(), split.held_out.end());
      std::ranges::sort(indices);
      ASSERT_EQ(std::ssize(indices), samples);
      for (int64_t i = 0; i < samples; ++i) ASSERT_EQ(indices[static_cast<size_t>(i)], i);
      EXPECT_FALSE(split.train.empty());
      EXPECT_FALSE(split.held_out.empty());
      EXPECT_TRUE(std::ranges::is_sorted(split.train));
      EXPECT_TRUE(std::ranges::is_sorted(split.held_out));
    }
  }
  EXPECT_EQ(draw_hold_out_split(1000, 0.05, 7).held_out.size(), 50U);
}

TEST(HoldOut, DependsOnTheSeedAlone) {
  EXPECT_EQ(draw_hold_out_split(1000, 0.05, 7).held_out, draw_hold_out_split(1000, 0.05, 7).held_out);
  EXPECT_NE(draw_hold_out_split(1000, 0.05, 7).held_out, draw_hold_out_split(1000, 0.05, 8).held_out);
  // Spread over all samples: a block of 50 neighbors would lie in one twentieth.
  const auto held_out = draw_hold_out_split(1000, 0.05, 7).held_out;
  EXPECT_LT(held_out.front(), 200);
  EXPECT_GT(held_out.back(), 800);
}

TEST(HoldOut, RejectsADataSetOfOneSample) {
  EXPECT_THROW(draw_hold_out_split(1, 0.5, 7), UserError);
}

TEST(HoldOut, ShareIsParsedOnlyFromANumber) {
  const auto parse_share = [](const char* eval) {
    DataOptions options;
    options.eval = eval;
    return parse_hold_out_share(options);
  };
  EXPECT_EQ(parse_share("0.05"), 0.05);
  EXPECT_EQ(parse_share("5e-2"), 0.05);
  for (const char* const path : {"", "eval.json", "0.05.json", "./0.05", "0.05 "}) {
    EXPECT_EQ(parse_share(path), std::nullopt) << path;
  }
  DataOptions options;
  OptionTable table;
  declare_options(table, options);
  for (const char* const invalid : {"data.eval=0", "data.eval=1", "data.eval=-0.5", "data.eval=12", "data.eval=nan"}) {
    EXPECT_THROW(table.read({}, {invalid}), UserError) << invalid;
  }
  table.read({}, {"data.eval=0.05", "data.columns.answer=label"});
  EXPECT_EQ(options.columns.at("answer"), "label");
  EXPECT_THROW(table.read({}, {"data.columns.anwser=label"}), UserError);
}

using planner::get_usage_error;
constexpr uint64_t kSeed = 7;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

/// Names of records, used as their questions and optionally as their ids.
using Names = std::vector<std::string>;

Names make_names(int64_t count) {
  Names names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("q{}", i));
  return names;
}

/// `ids`: whether records have ids; otherwise they are named by file and index.
io::InMemoryRecords make_records_named(const Names& names, bool ids = false) {
  std::vector<io::Record> records;
  for (const auto& name : names) {
    io::Record record;
    record.id = ids ? name : fmt::format("file:{}", records.size());
    record.turns = {{.role = io::Role::kUser, .text = ids ? "What is it?" : name},
                    {.role = io::Role::kAssistant, .text = "It is."}};
    records.push_back(std::move(record));
  }
  return io::InMemoryRecords(std::move(records));
}

HoldOutState make_state(const Names& names, int64_t most = kAll, bool ids = false) {
  HoldOutState memory{
      .path = "d.json", .hold_out_share = 0.25, .samples = std::ssize(names), .indices = {}, .content_hashes = {}};
  memory.indices = draw_hold_out_split(memory.samples, memory.hold_out_share, kSeed).held_out;
  compute_content_hashes(memory, make_records_named(names, ids), most, 1);
  return memory;
}

std::set<std::string> get_held_out_names(const HoldOutSplit& split, const Names& names) {
  std::set<std::string> result;
  for (const int64_t place : split.held_out) result.insert(names[static_cast<size_t>(place)]);
  return result;
}

RestoredHoldOut restore(const HoldOutState& memory, const Names& names, bool ids = false) {
  return restore_hold_out(memory, make_records_named(names, ids), kSeed, 2);
}

TEST(RestoreHoldOut, IsTheSameIfNothingChanged) {
  const Names names = make_names(40);
  for (const int64_t max_stored : {kAll, int64_t{3}, int64_t{0}}) {
    const auto restored = restore(make_state(names, max_stored), names);
    EXPECT_EQ(restored.split.held_out, draw_hold_out_split(40, 0.25, kSeed).held_out);
    EXPECT_EQ(restored.split.train, draw_hold_out_split(40, 0.25, kSeed).train);
    EXPECT_EQ(restored.change_description, "");
  }
}

TEST(RestoreHoldOut, HoldsOutTheShareOfAddedSamples) {
  const Names before = make_names(40), after = make_names(60);
  for (const int64_t max_stored : {kAll, int64_t{3}}) {
    const auto restored = restore(make_state(before, max_stored), after);
    const auto old = get_held_out_names(draw_hold_out_split(40, 0.25, kSeed), before),
               current = get_held_out_names(restored.split, after);
    EXPECT_TRUE(std::ranges::includes(current, old));
    EXPECT_EQ(current.size(), 15U);
    EXPECT_EQ(std::ranges::count_if(restored.split.held_out, [](int64_t place) { return place >= 40; }), 5);
    EXPECT_EQ(restored.split.train.size(), 45U);
    EXPECT_THAT(restored.change_description, HasSubstr("20 samples were added: 5 of them"));
  }
  EXPECT_EQ(restore(make_state(before), make_names(41)).split.held_out.size(), 10U)
      << "the share of one added sample rounds to 0";
}

TEST(RestoreHoldOut, FindsReorderedSamplesByContent) {
  const Names before = make_names(40);
  const auto expected = get_held_out_names(draw_hold_out_split(40, 0.25, kSeed), before);
  Names reversed(before.rbegin(), before.rend()), shifted = before, shorter(before.begin() + 5, before.end());
  std::ranges::rotate(shifted, shifted.begin() + 11);
  for (const bool ids : {false, true}) {
    for (const Names& after : {reversed, shifted}) {
      EXPECT_EQ(get_held_out_names(restore(make_state(before, kAll, ids), after, ids).split, after), expected) << ids;
    }
  }
  // No training sample replaces a removed held-out sample.
  const auto remaining = restore(make_state(before), shorter);
  for (const auto& name : get_held_out_names(remaining.split, shorter)) EXPECT_TRUE(expected.contains(name)) << name;
  EXPECT_EQ(remaining.split.train.size() + remaining.split.held_out.size(), shorter.size());
  // New ones in between are trained on.
  Names mixed = before;
  mixed.insert(mixed.begin() + 3, {"new", "newer"});
  EXPECT_EQ(get_held_out_names(restore(make_state(before), mixed).split, mixed), expected);
}

TEST(RestoreHoldOut, RejectsAmbiguousSamples) {
  const Names before = make_names(40);
  Names reversed(before.rbegin(), before.rend());
  EXPECT_THAT(get_usage_error([&] { restore(make_state(before, 3), reversed); }),
              AllOf(HasSubstr("data.check_at_start=false"), HasSubstr("set data.eval to a file")));
  Names doubled = reversed;
  doubled.insert(doubled.end(), reversed.begin(), reversed.end());
  EXPECT_THAT(get_usage_error([&] { restore(make_state(before), doubled); }), HasSubstr("have the same text as"));
}

TEST(RestoreHoldOut, SplitsAnotherDataSetFromScratch) {
  Names others;
  for (int i = 0; i < 20; ++i) others.push_back(fmt::format("other {}", i));
  const auto restored = restore(make_state(make_names(40)), others);
  EXPECT_EQ(restored.split.held_out, draw_hold_out_split(20, 0.25, kSeed).held_out);
  EXPECT_THAT(restored.change_description, HasSubstr("none of the 10 held-out samples"));
}

}  // namespace

}  // namespace vlmtrain::data
