#include "nn/in_pieces.h"

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "vlmtrain/nn/attention.h"

namespace vlmtrain::nn {
namespace {

/// Each piece is computed as it is in the whole, so that not even rounding differs.
TEST(AttendInPieces, IsAttentionOfTheWhole) {
  at::manual_seed(1);
  const auto segments = Segments::from_lengths({3, 1, 7, 2, 5}, at::kCPU);
  const at::Tensor q = at::randn({18, 4, 8}).set_requires_grad(true);
  const at::Tensor k = at::randn({18, 2, 8}).set_requires_grad(true), v = at::randn({18, 2, 8}).set_requires_grad(true);
  const auto whole = attention(q, k, v, segments, /*causal=*/true);
  const at::Tensor direction = at::randn_like(whole);
  const auto wanted = torch::autograd::grad({whole}, {q, k, v}, {direction});
  for (const int64_t most : {1, 2, 3, 5}) {
    std::vector<int64_t> counts;
    const auto attend = [&](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const Segments& part) {
      counts.push_back(std::ssize(part.lengths));
      EXPECT_EQ(part.offsets[-1].item<int64_t>(), query.size(0));
      return attention(query, key, value, part, /*causal=*/true);
    };
    const auto found = attend_in_pieces(q, k, v, segments, most, attend);
    EXPECT_EQ(std::ssize(counts), (5 + most - 1) / most);
    EXPECT_TRUE(found.equal(whole)) << most;
    const auto gradients = torch::autograd::grad({found}, {q, k, v}, {direction});
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(gradients[i].equal(wanted[i])) << most << " " << i;
  }
}

}  // namespace
}  // namespace vlmtrain::nn
