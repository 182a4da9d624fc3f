#include "vlmtrain/report/prediction.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>

#include "image/nifti_file.h"
#include "report/base64.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::report {
namespace {

at::Tensor decoded(const std::string& uri) {
  constexpr std::string_view kPrefix = "data:image/jpeg;base64,";
  EXPECT_TRUE(uri.starts_with(kPrefix));
  const std::string bytes = base64_decoded(uri.substr(kPrefix.size()));
  return image::decode_image(std::as_bytes(std::span(bytes)), "thumbnail");
}

TEST(Base64Test, OfRfc4648) {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"},
                                                       {"\xfb\xff\xfe", "+//+"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(base64(bytes), text);
    EXPECT_EQ(base64_decoded(text), bytes);
  }
  EXPECT_EQ(base64_decoded("Zg="), "");
  EXPECT_EQ(base64_decoded("Z!=="), "");
}

TEST(PredictionTest, IsOneLineOfJson) {
  const Prediction prediction{.step = 3,
                              .id = "a",
                              .task = "count",
                              .question = "How many?\n",
                              .expected = "2",
                              .given = "</script>",
                              .images = {"data:x"}};
  EXPECT_EQ(prediction.to_json_line(),
            R"({"step":3,"id":"a","task":"count","question":"How many?\n","expected":"2","given":"</script>",)"
            R"("images":["data:x"]})");
}

TEST(PredictionTest, MasksAreThereWhereSomeWereDrawn) {
  Prediction prediction{.step = 3, .id = "a"};
  EXPECT_FALSE(nlohmann::json::parse(prediction.to_json_line()).contains("masks"));
  prediction.masks = {{.structure = "liver", .dice = 0.5, .overlay = "data:x"}};
  EXPECT_EQ(nlohmann::json::parse(prediction.to_json_line())["masks"].dump(),
            R"([{"dice":0.5,"overlay":"data:x","structure":"liver"}])");
}

TEST(PredictionTest, VolumesHaveCaptions) {
  const Prediction prediction{.step = 3, .id = "a", .images = {"data:x", "data:y"}, .captions = {"T1w, sub-01", ""}};
  EXPECT_EQ(nlohmann::json::parse(prediction.to_json_line())["captions"], nlohmann::json({"T1w, sub-01", ""}));
}

TEST(ThumbnailTest, OfAScanShowsItsThreeMiddleSlices) {
  NiftiFile file(NiftiFile::k1, {8, 10, 6}, 2);
  for (int i = 0; i < 8 * 10 * 6; ++i) file.add_voxel(static_cast<uint8_t>(i % 8 * 20));
  io::Medium scan = scan_of(file.bytes());
  scan.is_volume = true;
  EXPECT_EQ(decoded(thumbnail_data_uri(scan)).sizes(), (std::vector<int64_t>{3, 10, 8 + 8 + 10}));
}

TEST(OverlayTest, IsSmallWithTheMaskFilledAndTheTruthOutlined) {
  const at::Tensor picture = at::full({3, 400, 800}, 100, at::kByte);
  at::Tensor drawn = at::zeros({400, 800}, at::kByte), truth = at::zeros({400, 800}, at::kByte);
  drawn.narrow(1, 0, 300).fill_(1);
  truth.narrow(1, 400, 400).fill_(1);
  const at::Tensor overlay = decoded(overlay_data_uri(picture, drawn, truth));
  ASSERT_EQ(overlay.sizes(), (std::vector<int64_t>{3, 120, kOverlayPixels}));
  const auto near = [&](int64_t y, int64_t x, std::array<int, 3> colour) {
    for (int64_t channel = 0; channel < 3; ++channel) {
      EXPECT_NEAR(overlay[channel][y][x].item<int>(), colour[static_cast<size_t>(channel)], 12) << y << ' ' << x;
    }
  };
  near(60, 40, {162, 116, 60});
  near(60, 100, {100, 100, 100});
  near(60, 180, {100, 100, 100});
  EXPECT_GT(overlay[1][60][239].item<int>(), overlay[0][60][239].item<int>() + 60) << "green at the edge";
}

TEST(ThumbnailTest, LongestSideIsBounded) {
  const at::Tensor wide = at::full({3, 100, 640}, 90, at::kByte);
  EXPECT_EQ(decoded(thumbnail_data_uri(wide)).sizes(), (std::vector<int64_t>{3, 25, kThumbnailPixels}));
  const at::Tensor thread = at::full({3, 4000, 1}, 90, at::kByte);
  EXPECT_EQ(decoded(thumbnail_data_uri(thread)).sizes(), (std::vector<int64_t>{3, kThumbnailPixels, 1}));
  const at::Tensor small = at::full({3, 32, 20}, 90, at::kByte);
  EXPECT_EQ(decoded(thumbnail_data_uri(small)).sizes(), small.sizes());
}

TEST(ThumbnailTest, ShowsThePicture) {
  const at::Tensor ramp = at::arange(64, at::kByte).mul(3).reshape({1, 1, 64}).expand({3, 48, 64});  // a view
  const at::Tensor difference = at::sub(decoded(thumbnail_data_uri(ramp)).to(at::kFloat), ramp.to(at::kFloat));
  EXPECT_LT(difference.abs().max().item<float>(), 8) << "lossy, but no other picture";
}

TEST(ThumbnailTest, OfAFile) {
  const std::filesystem::path pictures =
      std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/mixed_batch/images";
  const auto picture = std::filesystem::directory_iterator(pictures)->path();
  const at::Tensor thumbnail = decoded(thumbnail_data_uri(picture));
  EXPECT_LE(std::max(thumbnail.size(1), thumbnail.size(2)), kThumbnailPixels);
  EXPECT_THROW(thumbnail_data_uri(pictures / "nowhere.jpg"), UserError);
}

}  // namespace
}  // namespace vlmtrain::report
