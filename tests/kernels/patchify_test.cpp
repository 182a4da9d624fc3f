#include "vlmtrain/kernels/patchify.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {
namespace {

/// Normalization of CLIP.
const image::Normalization kNormalization{.mean = {0.48145466, 0.4578275, 0.40821073},
                                          .std = {0.26862954, 0.26130258, 0.27577711},
                                          .rescale_factor = 1.0 / 255.0};

class PatchifyKernel : public EmulatedKernelTest {
 protected:
  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }

  static image::ByteImages pixels(int64_t num_images, int64_t height, int64_t width) {
    return {.bytes = at::randint(256, {num_images, 3, height, width}, at::kByte), .normalization = kNormalization};
  }

  static void compare(const image::ByteImages& from, image::ImageSize patch) {
    const int64_t patch_bytes = kNumPixelChannels * patch.height * patch.width;
    for (const auto dtype : kTypes) {
      for (const int64_t padding : {0, 1, 4}) {
        const at::Tensor actual = patchify(from, patch, dtype, patch_bytes + padding),
                         expected = reference::patchify(from, patch, dtype, patch_bytes + padding);
        ASSERT_EQ(actual.sizes(), expected.sizes());
        EXPECT_TRUE(at::equal(actual, expected))
            << dtype << " " << from.bytes.sizes() << " " << patch.height << "×" << patch.width << " + " << padding;
      }
    }
  }
};

TEST_P(PatchifyKernel, MatchesAtenBitExactly) {
  compare(pixels(2, 32, 48), {16, 16});
  compare(pixels(2, 28, 42), {14, 14});
  compare(pixels(3, 5, 7), {1, 1});
  compare(pixels(1, 31, 33), {31, 33});
  compare(pixels(2, 62, 99), {31, 33});
  compare(pixels(1, 3, 4097), {3, 4097});
  compare(pixels(1, 2, 4097), {1, 31});
}

TEST_P(PatchifyKernel, EveryByteValueMatchesAtenBitExactly) {
  image::ByteImages all = pixels(1, 16, 16);
  all.bytes.copy_(at::arange(256, at::kByte).view({16, 16}).expand({1, 3, 16, 16}));
  for (const auto& normalization :
       {kNormalization, image::Normalization{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, 1.0 / 255.0},
        image::Normalization{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}, 1.0 / 255.0},
        image::Normalization{{0, 0, 0}, {1, 1, 1}, 1.0 / 255.0}}) {
    all.normalization = normalization;
    compare(all, {16, 16});
    compare(all, {4, 4});
  }
}

TEST_P(PatchifyKernel, DropsPixelsBeyondLastPatch) {
  compare(pixels(2, 45, 44), {14, 14});
  compare(pixels(2, 45, 33), {16, 16});
  // Lines as wide as the image are merged only if no line below them is dropped.
  compare(pixels(2, 45, 16), {14, 16});
  compare(pixels(2, 42, 16), {14, 16});
}

TEST_P(PatchifyKernel, ImagesMayBeReordered) {
  image::ByteImages from = pixels(5, 28, 14);
  from.image_indices = at::tensor({4, 0, 2, 2}, at::kLong);
  compare(from, {28, 14});
  compare(from, {14, 14});
}

TEST_P(PatchifyKernel, AcceptsUnalignedBytes) {
  constexpr int64_t kSide = 32, kImageBytes = 3 * kSide * kSide;
  const at::Tensor bytes = at::randint(256, {1 + kImageBytes}, at::kByte).narrow(0, 1, kImageBytes);
  compare({.bytes = bytes.view({1, 3, kSide, kSide}), .normalization = kNormalization}, {16, 16});
}

TEST_P(PatchifyKernel, AcceptsNoImages) {
  EXPECT_EQ(patchify(pixels(0, 32, 32), {16, 16}, at::kBFloat16, 768).sizes(), (at::IntArrayRef{0, 768}));
}

TEST_P(PatchifyKernel, RejectsInvalidPatches) {
  EXPECT_THROW(patchify(pixels(1, 32, 32), {33, 16}, at::kFloat, 2000), InternalError);
  EXPECT_THROW(patchify(pixels(1, 32, 32), {16, 16}, at::kFloat, 767), InternalError);
  image::ByteImages from = pixels(1, 32, 32);
  from.bytes = from.bytes.transpose(2, 3);
  EXPECT_THROW(patchify(from, {16, 16}, at::kFloat, 768), InternalError);
  from.bytes = at::zeros({1, 3, 32, 32});
  EXPECT_THROW(patchify(from, {16, 16}, at::kFloat, 768), InternalError);
}

TEST_P(PatchifyKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kSide = 336, kPatchesPerRow = kSide / 14, kImageBytes = 3 * kSide * kSide,
                    kNumImages = (int64_t{1} << 31) / kImageBytes + 2;
  const image::ByteImages small = pixels(1, kSide, kSide);
  const image::ByteImages large{.bytes = reserve_tensor({kNumImages, 3, kSide, kSide}, at::kByte),
                                .normalization = kNormalization};
  large.bytes.narrow(0, kNumImages - 1, 1).copy_(small.bytes);
  settings().max_trailing_blocks = kPatchesPerRow;
  const at::Tensor actual = patchify(large, {14, 14}, at::kBFloat16, 588);
  EXPECT_TRUE(at::equal(actual.narrow(0, actual.size(0) - kPatchesPerRow, kPatchesPerRow),
                        reference::patchify(small, {14, 14}, at::kBFloat16, 588)
                            .narrow(0, kPatchesPerRow * (kPatchesPerRow - 1), kPatchesPerRow)));
}

INSTANTIATE_TEST_SUITE_P(Orders, PatchifyKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
