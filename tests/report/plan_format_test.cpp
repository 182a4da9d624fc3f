#include "report/plan/plan_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/format/text_layout.h"
#include "report/plan_example.h"

namespace vlmtrain::report {
namespace {

int64_t sum_bytes(const std::vector<MemoryRow>& rows, MemoryRow::Kind kind) {
  int64_t sum = 0;
  for (const auto& row : rows) {
    if (row.kind == kind) sum += row.bytes;
  }
  return sum;
}

TEST(PlanMemoryTest, RowsSumToTheGpu) {
  planner::Plan plan = make_example_plan();
  plan.limit.communication_bytes = 300'000'000;
  const auto rows = make_memory_rows(plan);
  EXPECT_EQ(sum_bytes(rows, MemoryRow::Kind::kUsed), plan.total_bytes());
  EXPECT_EQ(sum_bytes(rows, MemoryRow::Kind::kFree), 1'600'000'000);
  EXPECT_EQ(sum_bytes(rows, MemoryRow::Kind::kMargin), plan.limit.margin_bytes);
  EXPECT_EQ(plan.total_bytes() + 1'600'000'000 + plan.limit.margin_bytes, plan.limit.allowed_bytes);
  EXPECT_EQ(compute_shortfall_bytes(plan), 0);
}

TEST(PlanMemoryTest, NothingIsFreeWhereItDoesNotFit) {
  const planner::Plan plan = make_unfit_example_plan();
  const auto rows = make_memory_rows(plan);
  EXPECT_EQ(sum_bytes(rows, MemoryRow::Kind::kUsed), plan.total_bytes());
  EXPECT_EQ(sum_bytes(rows, MemoryRow::Kind::kFree), 0);
  EXPECT_EQ(compute_shortfall_bytes(plan), 7'100'000'000);
}

TEST(PlanMemoryTest, ModelsWithoutAVisionTowerHaveNoVisionRow) {
  const auto has_vision_row = [](const planner::Plan& plan) {
    return std::ranges::any_of(make_memory_rows(plan),
                               [](const MemoryRow& row) { return row.name == "vision activations"; });
  };
  planner::Plan plan = make_example_plan();
  plan.detail.peak.bytes_by_component[static_cast<size_t>(memory::Component::kVision)] = 0;
  EXPECT_TRUE(has_vision_row(plan)) << "a vision tower that the peak does not contain";
  plan.detail.num_vision_blocks = 0;
  EXPECT_FALSE(has_vision_row(plan));
}

/// Returns the half columns that a bar fills: 'x' or ' '.
std::string to_half_columns(const std::string& bar) {
  std::string text;
  for (size_t i = 0; i < bar.size();) {
    if (bar[i] == ' ') {
      text += "  ";
      i += 1;
      continue;
    }
    const std::string glyph = bar.substr(i, 3);
    text += glyph == "█" ? "xx" : glyph == "▌" ? "x " : glyph == "▐" ? " x" : "  ";
    i += 3;
  }
  return text;
}

TEST(PlanBarsTest, BarsFollowEachOtherWithoutGapOrOverlap) {
  const BarScale scale{.max_value = 25'000, .columns = 44, .unicode = true};
  std::vector<int> num_covered(88, 0);
  int64_t offset = 0;
  for (const int64_t bytes : {1'000, 2'000, 6'000, 7'013, 2'487, 400, 60, 2, 38, 6'000}) {
    const std::string bar = draw_bar(offset, bytes, BarFill::kSolid, scale);
    EXPECT_EQ(count_columns(bar), 44);
    const std::string filled = to_half_columns(bar);
    for (size_t i = 0; i < num_covered.size(); ++i) num_covered[i] += filled[i] == 'x' ? 1 : 0;
    offset += bytes;
  }
  ASSERT_EQ(offset, scale.max_value);
  EXPECT_THAT(num_covered, testing::Each(1));
}

TEST(PlanBarsTest, LengthIsTheShareOfTheScale) {
  EXPECT_EQ(draw_bar(0, 50, BarFill::kSolid, {.max_value = 100, .columns = 10, .unicode = false}), "#####     ");
  EXPECT_EQ(draw_bar(50, 50, BarFill::kSolid, {.max_value = 100, .columns = 10, .unicode = false}), "     #####");
  EXPECT_EQ(draw_bar(25, 50, BarFill::kSolid, {.max_value = 100, .columns = 10, .unicode = true}), "  ▐████▌  ");
}

TEST(PlanBarsTest, ALittleIsAStrokeAndNothingIsNothing) {
  const BarScale scale{.max_value = 1'000'000, .columns = 10, .unicode = false};
  EXPECT_EQ(draw_bar(500'000, 1, BarFill::kSolid, scale), "     |    ");
  EXPECT_EQ(draw_bar(999'999, 1, BarFill::kSolid, scale), "         |") << "at the scale's end, inside it";
  EXPECT_EQ(draw_bar(500'000, 0, BarFill::kSolid, scale), "          ");
}

}  // namespace
}  // namespace vlmtrain::report
