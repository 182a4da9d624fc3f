#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "vlmtrain/evaluation/scores.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::evaluation {
namespace {

using nlohmann::json;

at::Tensor make_disc(int64_t side, int64_t y, int64_t x, int64_t radius) {
  at::Tensor mask = at::zeros({side, side}, at::kByte);
  auto* pixel = mask.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < side; ++i) {
    for (int64_t j = 0; j < side; ++j) *pixel++ = (i - y) * (i - y) + (j - x) * (j - x) <= radius * radius ? 1 : 0;
  }
  return mask;
}

/// tests/parity/reference/modules/mask_scores.py
TEST(MaskScore, MatchesMonai) {
  const json reference =
      json::parse(std::ifstream(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/evaluation/data/mask_scores.json"));
  ASSERT_GT(reference.at("cases").size(), 15U);
  for (const json& entry : reference.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto mask = [&entry](const char* key) {
      return image::decode_rle(io::parse_rle({{"size", entry.at("size")}, {"counts", entry.at(key)}}));
    };
    const at::Tensor predicted = mask("predicted"), truth = mask("truth");
    const MaskScore score = score_mask(predicted, truth);
    if (!entry.at("iou").is_null()) {
      EXPECT_NEAR(score.iou, entry.at("iou").get<double>(), 1e-12);
      EXPECT_NEAR(score.dice, entry.at("dice").get<double>(), 1e-12);
    }
    ASSERT_EQ(score.hausdorff95.has_value(), !entry.at("hausdorff95").is_null());
    if (!score.hausdorff95) continue;
    EXPECT_NEAR(*score.hausdorff95, entry.at("hausdorff95").get<double>(), 1e-6);
    EXPECT_NEAR(*score.hausdorff95, entry.at("monai_hausdorff95").get<double>(), 1e-4);
    EXPECT_EQ(score_mask(truth, predicted).hausdorff95, score.hausdorff95);
  }
}

TEST(MaskScore, HandlesEmptyMasks) {
  const at::Tensor empty = at::zeros({9, 9}, at::kByte), mask = make_disc(9, 4, 4, 2);
  const MaskScore both_empty = score_mask(empty, empty);
  EXPECT_EQ(both_empty.iou, 1);
  EXPECT_EQ(both_empty.dice, 1);
  EXPECT_FALSE(both_empty.hausdorff95);
  EXPECT_TRUE(both_empty.is_truth_empty && both_empty.is_prediction_empty);
  EXPECT_TRUE(score_mask(mask, empty).is_truth_empty && !score_mask(mask, empty).is_prediction_empty);
  EXPECT_TRUE(score_mask(empty, mask).is_prediction_empty && !score_mask(empty, mask).is_truth_empty);
  EXPECT_FALSE(score_mask(mask, mask).is_truth_empty || score_mask(mask, mask).is_prediction_empty);
  MaskScores scores, other_scores;
  scores.add(both_empty, "", "");
  scores.add(score_mask(empty, mask), "", "liver");
  other_scores.add(score_mask(mask, empty), "", "");
  other_scores.add(score_mask(mask, mask), "", "");
  scores.merge(other_scores);
  EXPECT_EQ(scores.total().num_empty_truths, 2);
  EXPECT_EQ(scores.total().num_empty_predictions, 2);
  EXPECT_EQ(scores.by_structure().at("liver").num_empty_predictions, 1);
  for (const MaskScore& score : {score_mask(mask, empty), score_mask(empty, mask)}) {
    EXPECT_EQ(score.iou, 0);
    EXPECT_EQ(score.dice, 0);
    EXPECT_FALSE(score.hausdorff95);
  }
}

TEST(SquaredDistances, MatchABruteForceSearch) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    const auto height = static_cast<int64_t>(1 + random() % 25), width = static_cast<int64_t>(1 + random() % 25);
    at::Tensor points = at::zeros({height + 3, width + 4}, at::kByte);
    const MaskWindow window{.top = 1, .left = 2, .height = height, .width = width};
    std::vector<std::pair<int64_t, int64_t>> points_list;
    for (unsigned i = 0; i <= random() % 6; ++i) {
      points_list.emplace_back(random() % height, random() % width);
      points[window.top + points_list.back().first][window.left + points_list.back().second] = 1;
    }
    const std::vector<int64_t> squares = compute_squared_distances(points, window);
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        int64_t nearest = 1 << 20;
        for (const auto& [i, j] : points_list) nearest = std::min(nearest, (i - y) * (i - y) + (j - x) * (j - x));
        EXPECT_EQ(squares[y * width + x], nearest) << y << ", " << x;
      }
    }
  }
}

/// About 0.06 s on a busy EPYC; the bound allows for sanitizers.
TEST(MaskScore, LargeMasksAreFast) {
  const at::Tensor predicted = make_disc(1024, 500, 520, 480), truth = make_disc(1024, 540, 500, 470);
  const auto start = std::chrono::steady_clock::now();
  const MaskScore score = score_mask(predicted, truth);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(seconds.count()));
  EXPECT_GT(score.hausdorff95.value(), 30);
  EXPECT_LT(seconds.count(), 2);
}

TEST(MaskScores, AreMeansByTaskAndStructure) {
  MaskScores scores, other_scores;
  EXPECT_EQ(scores.total().dice(), 0);
  EXPECT_FALSE(scores.total().hausdorff95());
  scores.add({.iou = 0.5, .dice = 0.75, .hausdorff95 = 4}, "liver", "organ");
  scores.add({.iou = 1, .dice = 1, .hausdorff95 = {}}, "liver", "");
  other_scores.add({.iou = 0, .dice = 0.25, .hausdorff95 = 8}, "spleen", "organ");
  scores.merge(other_scores);
  EXPECT_EQ(scores.total().num_masks, 3);
  EXPECT_EQ(scores.total().iou(), 0.5);
  EXPECT_DOUBLE_EQ(scores.total().dice(), 2.0 / 3);
  EXPECT_EQ(scores.total().hausdorff95(), 6);
  EXPECT_EQ(scores.by_task().at("liver").dice(), 0.875);
  EXPECT_EQ(scores.by_task().at("liver").hausdorff95(), 4);
  EXPECT_EQ(scores.by_task().at("spleen").num_masks, 1);
  EXPECT_EQ(scores.by_structure().size(), 1U);
  EXPECT_EQ(scores.by_structure().at("organ").hausdorff95(), 6);
}

}  // namespace
}  // namespace vlmtrain::evaluation
