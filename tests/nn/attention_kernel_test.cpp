#include "nn/attention/attention_kernel.h"

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::nn {
namespace {

/// Chunks are computed as in the whole, so the results are bit-exact.
TEST(AttendChunked, EqualsAttentionOfAllSegments) {
  at::manual_seed(1);
  const auto segments = Segments::from_lengths({3, 1, 7, 2, 5}, at::kCPU);
  const at::Tensor q = at::randn({18, 4, 8}).set_requires_grad(true);
  const at::Tensor k = at::randn({18, 2, 8}).set_requires_grad(true), v = at::randn({18, 2, 8}).set_requires_grad(true);
  const auto full_attention = attention(q, k, v, segments, /*is_causal=*/true);
  const at::Tensor direction = at::randn_like(full_attention);
  const auto expected = torch::autograd::grad({full_attention}, {q, k, v}, {direction});
  for (const int64_t max_segments : {1, 2, 3, 5}) {
    std::vector<int64_t> counts;
    const auto attend = [&](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const Segments& chunk) {
      counts.push_back(std::ssize(chunk.lengths));
      EXPECT_EQ(chunk.offsets[-1].item<int64_t>(), query.size(0));
      return attention(query, key, value, chunk, /*is_causal=*/true);
    };
    const auto actual = attend_chunked(q, k, v, segments, max_segments, attend);
    EXPECT_EQ(std::ssize(counts), (5 + max_segments - 1) / max_segments);
    EXPECT_TRUE(actual.equal(full_attention)) << max_segments;
    const auto gradients = torch::autograd::grad({actual}, {q, k, v}, {direction});
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(gradients[i].equal(expected[i])) << max_segments << " " << i;
  }
}

}  // namespace
}  // namespace vlmtrain::nn
