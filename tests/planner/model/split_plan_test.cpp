#include "vlmtrain/planner/split_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/user_error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {
namespace {

MemoryCostTable example_table() {
  return {.base_bytes = 1'000'000'007,
          .bytes_per_1024_units = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
          .vision_tiles_per_pass = 9,
          .loss_chunk_rows = 77,
          .limit_bytes = 23'000'000'000,
          .max_samples = 8};
}

TEST(MemoryCostTableTest, SizesAreSumsAndTheMaximumOfTokens) {
  const data::SampleShape small{.tokens = 10, .label_tokens = 3, .pixel_rows = 2};
  const data::SampleShape large{
      .tokens = 30, .label_tokens = 1, .pixel_rows = 5, .masks = 2, .num_images_with_masks = 1};
  EXPECT_EQ(compute_micro_batch_sizes(std::vector{small, large}), (MicroBatchSizes{.samples = 2,
                                                                                   .tokens = 40,
                                                                                   .max_sample_tokens = 30,
                                                                                   .label_tokens = 4,
                                                                                   .pixel_rows = 7,
                                                                                   .masks = 2,
                                                                                   .num_images_with_masks = 1}));
}

TEST(MemoryCostTableTest, RowsAreLimitedByTheChunkAndTheVisionPass) {
  const MicroBatchSizes sizes{.samples = 2,
                              .tokens = 40,
                              .max_sample_tokens = 30,
                              .label_tokens = 100,
                              .pixel_rows = 20,
                              .masks = 14,
                              .num_images_with_masks = 12};
  EXPECT_THAT(example_table().compute_term_values(sizes), testing::ElementsAre(2, 40, 60, 100, 77, 20, 9, 14, 12, 9));
  MemoryCostTable unbounded = example_table();
  unbounded.vision_tiles_per_pass = 0;
  EXPECT_EQ(unbounded.compute_term_values(sizes)[MemoryCostTable::kVisionPassRows], 20) << "0: all in one pass";
}

TEST(MemoryCostTableTest, BytesAreRoundedUp) {
  MemoryCostTable table{.base_bytes = 5};
  table.bytes_per_1024_units[MemoryCostTable::kTokens] = 1;
  EXPECT_EQ(table.bytes({.tokens = 1}), 6);
  EXPECT_EQ(table.bytes({.tokens = 1024}), 6);
  EXPECT_EQ(table.bytes({.tokens = 1025}), 7);
}

TEST(MemoryCostTableTest, JsonRoundTripIsExact) {
  const auto text = io::to_json_string(example_table().to_json(), 2);
  EXPECT_EQ(MemoryCostTable::from_json(nlohmann::ordered_json::parse(text), "state.json"), example_table());
  auto earlier = nlohmann::ordered_json::parse(text);  // as earlier versions wrote it
  earlier.erase("max_samples");
  earlier["bytes_per_1024"].erase("mask_images");
  earlier["bytes_per_1024"].erase("pass_images");
  EXPECT_EQ(MemoryCostTable::from_json(earlier, "state.json"), example_table());
}

TEST(MemoryCostTableTest, InvalidJsonIsRejected) {
  auto json = example_table().to_json();
  json["bytes_per_1024"]["tokens"] = -1;
  EXPECT_THAT(get_usage_error([&] { MemoryCostTable::from_json(json, "state.json"); }, ExitCode::kBadData),
              testing::AllOf(testing::HasSubstr("state.json"), testing::HasSubstr("tokens")));
  json = example_table().to_json();
  json.erase("limit_bytes");
  EXPECT_THAT(get_usage_error([&] { MemoryCostTable::from_json(json, "state.json"); }, ExitCode::kBadData),
              testing::HasSubstr("limit_bytes"));
  json = example_table().to_json();
  json.erase("bytes_per_1024");
  EXPECT_THAT(get_usage_error([&] { MemoryCostTable::from_json(json, "state.json"); }, ExitCode::kBadData),
              testing::HasSubstr("state.json"));
}

}  // namespace
}  // namespace vlmtrain::planner
