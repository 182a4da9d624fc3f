#include <ATen/TensorOperators.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "models/network/layers.h"

namespace vlmtrain::models {
namespace {

const image::Normalization kNormalization{{0.5, 0.25, 0.75}, {0.25, 0.5, 0.3}, 1.0 / 255};

class PatchEmbedding : public testing::Test {
 protected:
  static at::Tensor make_bytes(at::IntArrayRef sizes) {
    at::manual_seed(1);
    return at::randint(256, sizes, at::kByte);
  }

  static void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    EXPECT_LE((actual - expected).abs().max().item<double>(), 1e-12);
  }

  const at::Tensor bias_ = at::randn({5}, at::kDouble);
};

TEST_F(PatchEmbedding, EqualsConvolution) {
  const at::Tensor images = make_bytes({2, 3, 27, 33}), weight = at::randn({5, 3, 6, 7}, at::kDouble);
  const at::Tensor normalized = image::normalize_pixels(images, kNormalization).to(at::kDouble);
  for (const at::Tensor& bias : {bias_, at::Tensor()}) {
    const at::Tensor expected = at::convolution(normalized, weight, bias, {6, 7}, {0, 0}, {1, 1}, false, {0, 0}, 1);
    expect_close(embed_patches({images, kNormalization}, weight, bias),
                 expected.permute({0, 2, 3, 1}).reshape({-1, 5}));
  }
}

TEST_F(PatchEmbedding, SupportsFramesAndPatchOrder) {
  const at::Tensor patches = make_bytes({4, 3, 12, 6}), weight = at::randn({5, 3, 2, 6, 6}, at::kDouble);
  const at::Tensor order = at::tensor({3, 0, 1}, at::kLong);
  const at::Tensor normalized = image::normalize_pixels(patches, kNormalization).to(at::kDouble);
  const at::Tensor expected = at::convolution(normalized.view({4, 3, 2, 6, 6}), weight, bias_, {2, 6, 6}, {0, 0, 0},
                                              {1, 1, 1}, false, {0, 0, 0}, 1);
  expect_close(embed_patches({patches, kNormalization, order}, weight, bias_),
               expected.view({4, 5}).index_select(0, order));
}

TEST_F(PatchEmbedding, ImagesAreRoundedOnce) {
  const at::Tensor images = make_bytes({2, 3, 5, 7});
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    EXPECT_TRUE(at::equal(normalize_images({images, kNormalization}, dtype),
                          image::normalize_pixels(images, kNormalization).to(dtype)));
  }
}

}  // namespace
}  // namespace vlmtrain::models
