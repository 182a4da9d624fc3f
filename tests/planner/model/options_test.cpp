#include "vlmtrain/planner/options.h"

#include "base/option_values.h"

namespace vlmtrain::planner {
namespace {

TEST(MemoryOptionsTest, EachKeyAcceptsItsDocumentedValues) {
  expect_values<MemoryOptions>({
      {"memory.limit_gb", {"auto", "0.001", "1000000"}, {"0", "-1", "1000001"}},
      {"memory.mode", {"conservative", "balanced", "aggressive"}, {"bold"}},
      {"memory.recompute",
       {"auto", "none", "all", "0", "12", "3+24", "3+24/7"},
       {"-1", "3+", "+3", "3+4+5", "some", "1234567", "3/4", "3+4/"}},
      {"memory.vision_tiles_per_pass", {"auto", "0", "1"}, {"-1"}},
      {"memory.loss_chunk_rows", {"auto", "1"}, {"0"}},
      {"memory.empty_cache_above", {"0", "1"}, {"-0.1", "1.1"}},
  });
}

TEST(RecomputeOptionTest, IsLimitedToTheModelAndRoundTrips) {
  using models::RecomputeBlockCounts;
  const RecomputeBlockCounts all{.vision = 4, .language = 8};
  const auto resolve_block_counts = [&](const char* text) { return RecomputeOption{text}.resolve_block_counts(all); };
  EXPECT_EQ(resolve_block_counts("none"), RecomputeBlockCounts{});
  EXPECT_EQ(resolve_block_counts("all"), all);
  EXPECT_EQ(resolve_block_counts("6"), (RecomputeBlockCounts{4, 6}));
  EXPECT_EQ(resolve_block_counts("3+24/7"), (RecomputeBlockCounts{3, 8, 7}));
  EXPECT_EQ(resolve_block_counts("0+5/7"), (RecomputeBlockCounts{0, 5, 5}))
      << "attention of blocks that are not recomputed is kept anyway";
  for (const RecomputeBlockCounts& blocks : {all, RecomputeBlockCounts{0, 5, 2}, RecomputeBlockCounts{}}) {
    EXPECT_EQ(RecomputeOption::from_block_counts(blocks).resolve_block_counts(all), blocks);
  }
}

}  // namespace
}  // namespace vlmtrain::planner
