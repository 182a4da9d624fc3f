#include "vlmtrain/report/prediction.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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
