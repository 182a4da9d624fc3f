#include "vlmtrain/report/prediction.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>

#include "image/nifti_file.h"
#include "report/format/html.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::report {
namespace {

at::Tensor decode_uri(const std::string& uri) {
  constexpr std::string_view kPrefix = "data:image/jpeg;base64,";
  EXPECT_TRUE(uri.starts_with(kPrefix));
  const std::string bytes = base64_decode(uri.substr(kPrefix.size())).value();
  return image::decode_image(std::as_bytes(std::span(bytes)), "thumbnail");
}

TEST(Base64Test, MatchesRfc4648) {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"},
                                                       {"\xfb\xff\xfe", "+//+"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(base64_encode(bytes), text);
    EXPECT_EQ(base64_decode(text), bytes);
  }
  EXPECT_EQ(base64_decode("Zg="), std::nullopt);
  EXPECT_EQ(base64_decode("Z!=="), std::nullopt);
  EXPECT_EQ(base64_decode("Zg==Zg=="), std::nullopt);
  EXPECT_EQ(base64_decode("Zm\r\n8="), "fo");
}

TEST(PredictionTest, IsOneJsonLine) {
  const Prediction prediction{.step = 3,
                              .id = "a",
                              .task = "count",
                              .question = "How many?\n",
                              .expected_answer = "2",
                              .answer = "</script>",
                              .thumbnail_uris = {"data:x"}};
  EXPECT_EQ(prediction.to_json_line(),
            R"({"step":3,"id":"a","task":"count","question":"How many?\n","expected":"2","answer":"</script>",)"
            R"("images":["data:x"],"given":"</script>"})");
}

TEST(PredictionTest, MasksAreWrittenWhereThereAreSome) {
  Prediction prediction{.step = 3, .id = "a"};
  EXPECT_FALSE(nlohmann::json::parse(prediction.to_json_line()).contains("masks"));
  prediction.masks = {{.structure = "liver", .dice = 0.5, .overlay_uri = "data:x"}};
  EXPECT_EQ(nlohmann::json::parse(prediction.to_json_line())["masks"].dump(),
            R"([{"dice":0.5,"overlay":"data:x","structure":"liver"}])");
}

TEST(PredictionTest, BoxesAreWrittenWhereThereAreSome) {
  Prediction prediction{.step = 1};
  EXPECT_FALSE(nlohmann::json::parse(prediction.to_json_line()).contains("boxes"));
  prediction.boxes = PredictedBoxes{.iou = 0.5, .overlay_uri = "uri"};
  EXPECT_EQ(nlohmann::json::parse(prediction.to_json_line())["boxes"].dump(), R"({"iou":0.5,"overlay":"uri"})");
}

TEST(OverlayTest, OutlinesBoxes) {
  const at::Tensor image = at::zeros({3, 2 * kMaxOverlaySide, 2 * kMaxOverlaySide}, at::kByte);
  const image::Box truth{{.x = 40, .y = 80}, {.x = 400, .y = 240}};
  const at::Tensor overlay = decode_uri(make_box_overlay_uri(image, {}, {truth}));
  ASSERT_EQ(overlay.size(1), kMaxOverlaySide);
  const auto get_green = [&](int64_t y, int64_t x) { return overlay[1][y][x].item<int64_t>(); };
  EXPECT_GT(get_green(40, 100), 60) << "upper side, at half the size";
  EXPECT_GT(get_green(60, 20), 60) << "left side";
  EXPECT_LT(get_green(80, 100), 50) << "inside";
  EXPECT_LT(get_green(30, 100), 50) << "outside";
}

TEST(PredictionTest, VolumesHaveCaptions) {
  const Prediction prediction{
      .step = 3, .id = "a", .thumbnail_uris = {"data:x", "data:y"}, .volume_captions = {"T1w, sub-01", ""}};
  EXPECT_EQ(nlohmann::json::parse(prediction.to_json_line())["captions"], nlohmann::json({"T1w, sub-01", ""}));
}

TEST(ThumbnailTest, AScanShowsItsThreeMiddleSlices) {
  NiftiFile file(NiftiFile::k1, {8, 10, 6}, 2);
  for (int i = 0; i < 8 * 10 * 6; ++i) file.add_voxel(static_cast<uint8_t>(i % 8 * 20));
  io::MediaRef scan = make_scan(file.bytes());
  scan.is_volume = true;
  EXPECT_EQ(decode_uri(make_thumbnail_uri(scan)).sizes(), (std::vector<int64_t>{3, 10, 8 + 8 + 10}));
}

TEST(OverlayTest, FillsThePredictionAndOutlinesTheTruth) {
  const at::Tensor image = at::full({3, 400, 800}, 100, at::kByte);
  at::Tensor predicted = at::zeros({400, 800}, at::kByte), truth = at::zeros({400, 800}, at::kByte);
  predicted.narrow(1, 0, 300).fill_(1);
  truth.narrow(1, 400, 400).fill_(1);
  const at::Tensor overlay = decode_uri(make_overlay_uri(image, predicted, truth));
  ASSERT_EQ(overlay.sizes(), (std::vector<int64_t>{3, 120, kMaxOverlaySide}));
  const auto expect_color = [&](int64_t y, int64_t x, std::array<int, 3> color) {
    for (int64_t channel = 0; channel < 3; ++channel) {
      EXPECT_NEAR(overlay[channel][y][x].item<int>(), color[static_cast<size_t>(channel)], 12) << y << ' ' << x;
    }
  };
  expect_color(60, 40, {162, 116, 60});
  expect_color(60, 100, {100, 100, 100});
  expect_color(60, 180, {100, 100, 100});
  EXPECT_GT(overlay[1][60][239].item<int>(), overlay[0][60][239].item<int>() + 60) << "green at the edge";
}

TEST(ThumbnailTest, LongestSideIsBounded) {
  const at::Tensor wide_image = at::full({3, 100, 640}, 90, at::kByte);
  EXPECT_EQ(decode_uri(make_thumbnail_uri(wide_image)).sizes(), (std::vector<int64_t>{3, 25, kMaxThumbnailSide}));
  const at::Tensor thin_image = at::full({3, 4000, 1}, 90, at::kByte);
  EXPECT_EQ(decode_uri(make_thumbnail_uri(thin_image)).sizes(), (std::vector<int64_t>{3, kMaxThumbnailSide, 1}));
  const at::Tensor small = at::full({3, 32, 20}, 90, at::kByte);
  EXPECT_EQ(decode_uri(make_thumbnail_uri(small)).sizes(), small.sizes());
}

TEST(ThumbnailTest, ShowsTheImage) {
  const at::Tensor ramp = at::arange(64, at::kByte).mul(3).reshape({1, 1, 64}).expand({3, 48, 64});  // a view
  const at::Tensor difference = at::sub(decode_uri(make_thumbnail_uri(ramp)).to(at::kFloat), ramp.to(at::kFloat));
  EXPECT_LT(difference.abs().max().item<float>(), 8) << "lossy, but the same image";
}

TEST(ThumbnailTest, ReadsAFile) {
  const std::filesystem::path image_dir =
      std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/mixed_batch/images";
  const auto image = std::filesystem::directory_iterator(image_dir)->path();
  const at::Tensor thumbnail = decode_uri(make_thumbnail_uri(image));
  EXPECT_LE(std::max(thumbnail.size(1), thumbnail.size(2)), kMaxThumbnailSide);
  EXPECT_THROW(make_thumbnail_uri(image_dir / "nowhere.jpg"), UserError);
}

}  // namespace
}  // namespace vlmtrain::report
