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

at::Tensor make_noise(int64_t height, int64_t width, unsigned seed) {
  at::Tensor image = at::empty({3, height, width}, at::kByte);
  std::mt19937 random(seed);
  uint8_t* values = image.mutable_data_ptr<uint8_t>();
  // Black and white only: the overshoots of the filters are then at their largest.
  for (int64_t i = 0; i < image.numel(); ++i) values[i] = random() % 2 == 0 ? 0 : 255;
  return image;
}

TEST(Resize, IsBitEqualToTorchvision) {
  const nlohmann::json reference = read_test_json(kImageData / "resize.json");
  const std::vector<std::byte> pixels = read_test_bytes(kImageData / "resize_sources.bin");
  std::map<std::string, at::Tensor> sources;
  for (const auto& [name, source] : reference.at("sources").items()) {
    at::Tensor image = at::empty({3, source.at("height"), source.at("width")}, at::kByte);
    std::memcpy(image.mutable_data_ptr(), pixels.data() + source.at("offset").get<size_t>(), image.nbytes());
    sources[name] = image;
  }
  const std::map<std::string, ResampleFilter> filters{{"bilinear", ResampleFilter::kBilinear},
                                                      {"bicubic", ResampleFilter::kBicubic},
                                                      {"lanczos", ResampleFilter::kLanczos}};
  ASSERT_GT(reference.at("cases").size(), 100U);
  for (const auto& entry : reference.at("cases")) {
    const at::Tensor resized = resize_image(sources.at(entry.at("source")), entry.at("height"), entry.at("width"),
                                            filters.at(entry.at("filter")));
    EXPECT_EQ(compute_crc32(resized), entry.at("crc32")) << entry;
  }
}

/// The two filters of LibTorch must agree to the bit on random sizes.
TEST(Resize, MatchesAten) {
  std::mt19937 random(3);
  const auto random_side = [&random] { return static_cast<int64_t>(random() % 150 + 1); };
  for (unsigned round = 0; round < 60; ++round) {
    const at::Tensor image = make_noise(random_side(), random_side() + 1, round);
    const std::array<int64_t, 2> size{random_side(), random_side()};
    const at::Tensor batch = image.unsqueeze(0);
    EXPECT_TRUE(at::equal(resize_image(image, size[0], size[1], ResampleFilter::kBilinear),
                          at::_upsample_bilinear2d_aa(batch, size, false).squeeze(0)))
        << image.sizes() << " to " << size[0] << " x " << size[1];
    EXPECT_TRUE(at::equal(resize_image(image, size[0], size[1], ResampleFilter::kBicubic),
                          at::_upsample_bicubic2d_aa(batch, size, false).squeeze(0)))
        << image.sizes() << " to " << size[0] << " x " << size[1];
  }
}

/// Pillow's weights are only more precise than ATen's. Its exact bytes are in the goldens of
/// tests/models/families/nanovlm_test.cpp.
TEST(Resize, PillowDiffersFromAtenByAtMostOneByte) {
  for (const ResampleFilter filter : {ResampleFilter::kBilinear, ResampleFilter::kBicubic}) {
    const at::Tensor image = make_noise(61, 83, 4);
    const at::Tensor actual = resize_like_pillow(image, 40, 120, filter);
    const at::Tensor expected = resize_image(image, 40, 120, filter);
    EXPECT_LE((actual.to(at::kShort) - expected.to(at::kShort)).abs().max().item<int16_t>(), 1);
  }
}

TEST(Resize, FloatResizeRoundsOnce) {
  std::mt19937 random(5);
  // From 2 on: what ATen gives for one column is not the filter's.
  const auto random_side = [&random] { return static_cast<int64_t>(random() % 150 + 2); };
  for (unsigned round = 0; round < 20; ++round) {
    const at::Tensor image = make_noise(random_side(), random_side(), round);
    const std::array<int64_t, 2> size{random_side(), random_side()};
    const at::Tensor exact = at::_upsample_bilinear2d_aa(image.unsqueeze(0).to(at::kDouble), size, false).squeeze(0);
    const at::Tensor actual = resize_in_floating_point(image, size[0], size[1], ResampleFilter::kBilinear);
    EXPECT_LE((actual.to(at::kDouble) - exact).abs().max().item<double>(), 0.5 + 2e-6)
        << image.sizes() << " to " << size[0] << " x " << size[1];
  }
}

TEST(Resize, MemoryLayoutDoesNotMatter) {
  const at::Tensor image = make_noise(37, 53, 1);
  const at::Tensor interleaved = image.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
  ASSERT_FALSE(interleaved.is_contiguous());
  EXPECT_TRUE(at::equal(resize_image(image, 64, 64, ResampleFilter::kLanczos),
                        resize_image(interleaved, 64, 64, ResampleFilter::kLanczos)));
}

TEST(Resize, SameSizeIsTheSameImage) {
  const at::Tensor image = make_noise(9, 7, 2);
  EXPECT_TRUE(at::equal(resize_image(image, 9, 7, ResampleFilter::kLanczos), image));
}

TEST(Resize, RejectsOtherTypesAndSizes) {
  EXPECT_THROW(resize_image(make_noise(4, 4, 0).to(at::kFloat), 8, 8, ResampleFilter::kLanczos), InternalError);
  EXPECT_THROW(resize_image(make_noise(4, 4, 0), 0, 8, ResampleFilter::kLanczos), InternalError);
}

}  // namespace
}  // namespace vlmtrain::image
