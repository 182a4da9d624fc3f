#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "image/mask_rows.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::image {
namespace {

TEST(ResizeMask, TakesThePixelUnderEachCenter) {
  const at::Tensor mask = make_mask({"100", "011"});
  EXPECT_EQ(to_rows(resize_mask(mask, 4, 6)), (std::vector<std::string>{"110000", "110000", "001111", "001111"}));
  EXPECT_EQ(to_rows(resize_mask(mask, 1, 1)), (std::vector<std::string>{"1"}));
  EXPECT_EQ(to_rows(resize_mask(mask, 2, 2)), (std::vector<std::string>{"10", "01"}));
  EXPECT_TRUE(resize_mask(mask, 2, 3).is_same(mask));
}

TEST(ResizeMask, MatchesAten) {
  std::mt19937 random(9);
  const auto random_side = [&random] { return static_cast<int64_t>(1 + random() % 90); };
  // With odd sizes, no center lies between two pixels, where the rounding of float32 decides in
  // ATen.
  const auto random_odd_side = [&random_side] { return random_side() | 1; };
  for (int round = 0; round < 60; ++round) {
    at::Tensor mask = at::empty({random_odd_side(), random_odd_side()}, at::kByte);
    for (int64_t i = 0; i < mask.numel(); ++i) mask.mutable_data_ptr<uint8_t>()[i] = random() % 2;
    const std::array<int64_t, 2> size{random_side(), random_side()};
    const at::Tensor expected = at::_upsample_nearest_exact2d(mask.unsqueeze(0).unsqueeze(0).to(at::kDouble), size);
    EXPECT_TRUE(at::equal(resize_mask(mask, size[0], size[1]), expected[0][0].to(at::kByte)))
        << mask.sizes() << " to " << size[0] << " x " << size[1];
  }
}

}  // namespace
}  // namespace vlmtrain::image
