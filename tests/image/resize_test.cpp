#include "vlmtrain/image/resize.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "image/reference_files.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

at::Tensor noise(int64_t height, int64_t width, unsigned seed) {
  at::Tensor picture = at::empty({3, height, width}, at::kByte);
  std::mt19937 random(seed);
  uint8_t* values = picture.mutable_data_ptr<uint8_t>();
  // Black and white only: the overshoots of the filters are then at their largest.
  for (int64_t i = 0; i < picture.numel(); ++i) values[i] = random() % 2 == 0 ? 0 : 255;
  return picture;
}

TEST(Resize, IsBitEqualToTorchvision) {
  const nlohmann::json reference = file_json(kImageData / "resize.json");
  const std::vector<std::byte> pixels = file_bytes(kImageData / "resize_sources.bin");
  std::map<std::string, at::Tensor> sources;
  for (const auto& [name, source] : reference.at("sources").items()) {
    at::Tensor picture = at::empty({3, source.at("height"), source.at("width")}, at::kByte);
    std::memcpy(picture.mutable_data_ptr(), pixels.data() + source.at("offset").get<size_t>(), picture.nbytes());
    sources[name] = picture;
  }
  const std::map<std::string, Filter> filters{
      {"bilinear", Filter::kBilinear}, {"bicubic", Filter::kBicubic}, {"lanczos", Filter::kLanczos}};
  ASSERT_GT(reference.at("cases").size(), 100U);
  for (const auto& entry : reference.at("cases")) {
    const at::Tensor resized =
        resize(sources.at(entry.at("source")), entry.at("height"), entry.at("width"), filters.at(entry.at("filter")));
    EXPECT_EQ(crc32_of(resized), entry.at("crc32")) << entry;
  }
}

/// LibTorch has the two other filters; on random sizes they must agree to the bit.
TEST(Resize, AgreesWithAten) {
  std::mt19937 random(3);
  const auto side = [&random] { return static_cast<int64_t>(random() % 150 + 1); };
  for (unsigned round = 0; round < 60; ++round) {
    const at::Tensor picture = noise(side(), side() + 1, round);
    const std::array<int64_t, 2> size{side(), side()};
    const at::Tensor batch = picture.unsqueeze(0);
    EXPECT_TRUE(at::equal(resize(picture, size[0], size[1], Filter::kBilinear),
                          at::_upsample_bilinear2d_aa(batch, size, false).squeeze(0)))
        << picture.sizes() << " to " << size[0] << " x " << size[1];
    EXPECT_TRUE(at::equal(resize(picture, size[0], size[1], Filter::kBicubic),
                          at::_upsample_bicubic2d_aa(batch, size, false).squeeze(0)))
        << picture.sizes() << " to " << size[0] << " x " << size[1];
  }
}

/// Pillow's own bytes are in the goldens of models (tests/models/nanovlm_test.cpp): its arithmetic only is finer.
TEST(Resize, PillowsArithmeticIsAByteFromAtensAtMost) {
  for (const Filter filter : {Filter::kBilinear, Filter::kBicubic}) {
    const at::Tensor picture = noise(61, 83, 4);
    const at::Tensor found = resize_as_pillow(picture, 40, 120, filter);
    const at::Tensor wanted = resize(picture, 40, 120, filter);
    EXPECT_LE((found.to(at::kShort) - wanted.to(at::kShort)).abs().max().item<int16_t>(), 1);
  }
}

TEST(Resize, RoundingOnceIsHalfAByteFromFloatsAtMost) {
  std::mt19937 random(5);
  // From 2 on: what ATen gives for one column is not the filter's.
  const auto side = [&random] { return static_cast<int64_t>(random() % 150 + 2); };
  for (unsigned round = 0; round < 20; ++round) {
    const at::Tensor picture = noise(side(), side(), round);
    const std::array<int64_t, 2> size{side(), side()};
    const at::Tensor exact = at::_upsample_bilinear2d_aa(picture.unsqueeze(0).to(at::kDouble), size, false).squeeze(0);
    const at::Tensor found = resize_rounding_once(picture, size[0], size[1], Filter::kBilinear);
    EXPECT_LE((found.to(at::kDouble) - exact).abs().max().item<double>(), 0.5 + 2e-6)
        << picture.sizes() << " to " << size[0] << " x " << size[1];
  }
}

TEST(Resize, MemoryLayoutDoesNotMatter) {
  const at::Tensor picture = noise(37, 53, 1);
  const at::Tensor interleaved = picture.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
  ASSERT_FALSE(interleaved.is_contiguous());
  EXPECT_TRUE(at::equal(resize(picture, 64, 64, Filter::kLanczos), resize(interleaved, 64, 64, Filter::kLanczos)));
}

TEST(Resize, SameSizeIsTheSamePicture) {
  const at::Tensor picture = noise(9, 7, 2);
  EXPECT_TRUE(at::equal(resize(picture, 9, 7, Filter::kLanczos), picture));
}

TEST(Resize, WantsBytesOnTheCpu) {
  EXPECT_THROW(resize(noise(4, 4, 0).to(at::kFloat), 8, 8, Filter::kLanczos), InternalError);
  EXPECT_THROW(resize(noise(4, 4, 0), 0, 8, Filter::kLanczos), InternalError);
}

}  // namespace
}  // namespace vlmtrain::image
