#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain {
namespace {

/// More windows than a grid dimension allows: those of 200 images of 1024² in TinyViT.
constexpr int64_t kWindows = 70'000, kRows = 4, kHeads = 2, kHeadSize = 32;

class ManySegmentsOnGpu : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor make_leaf(at::IntArrayRef sizes) const { return at::empty(sizes, options_).set_requires_grad(true); }

  /// Includes the backward pass.
  static void expect_accepted(const at::Tensor& output) {
    output.backward(at::ones_like(output));
    EXPECT_GT(counters().num_launches, 0U);
    EXPECT_EQ(counters().num_rejected_launches, 0U);
  }

  const at::Device device_ = memory::open_device("cuda");
  const at::TensorOptions options_ = at::TensorOptions(GetParam()).device(device_);
};

TEST_P(ManySegmentsOnGpu, AreChunked) {
  const auto segments = nn::Segments::uniform(kWindows, kRows, device_);
  const auto rows = [this] { return make_leaf({kWindows * kRows, kHeads, kHeadSize}); };
  virtual_gpu().reset();
  expect_accepted(nn::attention(rows(), rows(), rows(), segments, /*is_causal=*/false));
}

TEST_P(ManySegmentsOnGpu, WithBias) {
  const auto windows = [this] { return make_leaf({kWindows, kRows, kHeads, kHeadSize}); };
  virtual_gpu().reset();
  expect_accepted(nn::biased_attention(windows(), windows(), windows(), make_leaf({1, kHeads, kRows, kRows})));
  expect_accepted(nn::batched_attention(windows(), windows(), windows()));
}

INSTANTIATE_TEST_SUITE_P(, ManySegmentsOnGpu, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& instance) { return c10::toString(instance.param); });

}  // namespace
}  // namespace vlmtrain
