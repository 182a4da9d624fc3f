#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/pixel_transforms.h"

namespace vlmtrain::image {
namespace {

TEST(Normalize, FoldsTheRescalingIntoMeanAndStd) {
  const Normalization clip{.mean = {0.48145466, 0.4578275, 0.40821073},
                           .std = {0.26862954, 0.26130258, 0.27577711},
                           .rescale_factor = 1.0 / 255.0};
  const at::Tensor tiles = at::arange(2 * 3 * 64, at::kByte).view({2, 3, 8, 8});
  const at::Tensor result = normalize_pixels(tiles, clip);
  ASSERT_EQ(result.scalar_type(), at::kFloat);
  ASSERT_EQ(result.sizes(), tiles.sizes());
  const uint8_t* bytes = tiles.const_data_ptr<uint8_t>();
  const float* values = result.const_data_ptr<float>();
  for (int64_t i = 0; i < tiles.numel(); ++i) {
    const int64_t channel = i / 64 % 3;
    const float mean = static_cast<float>(clip.mean[channel]) * 255.0F;
    const float std = static_cast<float>(clip.std[channel]) * 255.0F;
    EXPECT_EQ(values[i], (static_cast<float>(bytes[i]) - mean) / std) << i;
  }
}

TEST(Normalize, RejectsOtherTypes) {
  const Normalization half{.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}, .rescale_factor = 1.0 / 255.0};
  EXPECT_THROW(normalize_pixels(at::arange(48).view({1, 3, 4, 4}), half), InternalError);
}

}  // namespace
}  // namespace vlmtrain::image
