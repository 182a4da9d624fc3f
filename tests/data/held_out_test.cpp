#include "vlmtrain/data/index/hold_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/options.h"

namespace vlmtrain::data {
namespace {

TEST(HoldOut, SplitsADataSetInTwo) {
  for (const int64_t samples : {2, 3, 19, 1000}) {
    for (const double share : {1e-6, 0.05, 0.5, 0.999999}) {
      const HoldOutSplit split = hold_out(samples, share, 7);
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
  EXPECT_EQ(hold_out(1000, 0.05, 7).held_out.size(), 50U);
}

TEST(HoldOut, DependsOnTheSeedAlone) {
  EXPECT_EQ(hold_out(1000, 0.05, 7).held_out, hold_out(1000, 0.05, 7).held_out);
  EXPECT_NE(hold_out(1000, 0.05, 7).held_out, hold_out(1000, 0.05, 8).held_out);
  // Spread over all: a block of 50 neighbours would lie in one twentieth.
  const auto held_out = hold_out(1000, 0.05, 7).held_out;
  EXPECT_LT(held_out.front(), 200);
  EXPECT_GT(held_out.back(), 800);
}

TEST(HoldOut, RejectsADataSetOfOneSample) {
  EXPECT_THROW(hold_out(1, 0.5, 7), UserError);
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
  declare(table, options);
  for (const char* const invalid : {"data.eval=0", "data.eval=1", "data.eval=-0.5", "data.eval=12", "data.eval=nan"}) {
    EXPECT_THROW(table.read({}, {invalid}), UserError) << invalid;
  }
  table.read({}, {"data.eval=0.05", "data.columns.answer=label"});
  EXPECT_EQ(options.columns.at("answer"), "label");
  EXPECT_THROW(table.read({}, {"data.columns.anwser=label"}), UserError);
}

}  // namespace
}  // namespace vlmtrain::data
