#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/engine/gradients/rank_sync.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/matmul.h"
#include "vlmtrain/nn/layers/recompute.h"

namespace vlmtrain::engine {
namespace {

using parity::relative_difference;

constexpr int64_t kFeatures = 16;

/// A group of Linears followed by one more, with or without adapters.
class Network {
 public:
  explicit Network(at::ScalarType dtype, bool has_adapters)
      : store_(settings(dtype, has_adapters)),
        group_(nn::ParameterScope(store_, nn::Component::kLanguageModel, "group"), {"q", "k", "v"}, kFeatures,
               {kFeatures, 8, 8}, /*bias=*/true),
        last_(nn::ParameterScope(store_, nn::Component::kLanguageModel, "last"), kFeatures + 16, kFeatures,
              /*bias=*/false) {
    at::manual_seed(5);
    for (const auto& parameter : store_.all()) parameter.tensor.detach().copy_(at::randn(parameter.tensor.sizes()));
  }

  nn::ParameterStore& store() { return store_; }

  /// Uses `last` twice.
  at::Tensor operator()(const at::Tensor& x) const { return last_(group_(last_(group_(x)))); }

  /// Runs the backward pass of a micro-batch.
  void backward(int seed, bool is_recomputed) const {
    at::manual_seed(seed);
    const at::Tensor x = at::randn({20, kFeatures}).to(store_.all().front().tensor.scalar_type());
    std::vector<at::Tensor> parameters;
    for (const auto& parameter : store_.all()) parameters.push_back(parameter.tensor);
    const at::Tensor y = is_recomputed ? nn::run_checkpointed(std::cref(*this), x, parameters) : (*this)(x);
    (y * at::randn(y.sizes()).to(y.scalar_type())).sum().backward();
  }

 private:
  static nn::ParameterSettings settings(at::ScalarType dtype, bool has_adapters) {
    nn::ParameterSettings settings{at::TensorOptions(dtype)};
    if (has_adapters) settings.lora = nn::LoraSettings{.rank = 4};
    return settings;
  }

  nn::ParameterStore store_;
  nn::MergedLinear group_;
  nn::Linear last_;
};

/// Returns autograd's gradients of several micro-batches, summed in fp32.
std::vector<at::Tensor> sum_autograd_gradients(Network& network, int micro_batches) {
  std::vector<at::Tensor> totals;
  for (int i = 0; i < micro_batches; ++i) {
    network.backward(i, /*recomputed=*/false);
    size_t next = 0;
    for (const auto& parameter : network.store().all()) {
      if (!parameter.tensor.requires_grad()) continue;
      const at::Tensor gradient = parameter.tensor.grad().to(at::kFloat);
      parameter.tensor.mutable_grad().reset();
      if (i == 0) {
        totals.push_back(gradient);
      } else {
        totals[next++] += gradient;
      }
    }
  }
  return totals;
}

struct Case {
  at::ScalarType dtype;
  bool has_adapters, is_recomputed;
};

class LinearGradientBuckets : public testing::TestWithParam<Case> {};

TEST_P(LinearGradientBuckets, MatchAutograd) {
  Network network(GetParam().dtype, GetParam().has_adapters);
  const auto expected = sum_autograd_gradients(network, 3);
  // In 16 bits autograd rounds the sum of both uses of a parameter once more.
  const double tolerance = GetParam().dtype == at::kFloat ? 1e-6 : 1e-2;
  GradientBuckets buckets(network.store());
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 3; ++i) network.backward(i, GetParam().is_recomputed);
    ASSERT_EQ(expected.size(), buckets.size());
    for (size_t i = 0; i < buckets.size(); ++i)
      EXPECT_LT(relative_difference(buckets.sum(i), expected[i]), tolerance) << i;
    buckets.reset();
    EXPECT_FALSE(buckets.has_gradient(0));
  }
}

TEST_P(LinearGradientBuckets, OfTheLastPassAreReducedEarly) {
  Network network(GetParam().dtype, GetParam().has_adapters);
  GradientBuckets buckets(network.store());
  GradientReducer reducer(buckets);
  for (int i = 0; i < 2; ++i) network.backward(i, GetParam().is_recomputed);
  std::vector<at::Tensor> expected;
  for (size_t i = 0; i < buckets.size(); ++i) expected.push_back(buckets.sum(i).clone());
  buckets.reset();
  int64_t reduced_elements = 0;
  reducer.register_comm_hook([&](const at::Tensor& bucket) { reduced_elements += bucket.numel(); });
  network.backward(0, GetParam().is_recomputed);
  EXPECT_EQ(reduced_elements, 0);
  reducer.begin_last_micro_batch();
  network.backward(1, GetParam().is_recomputed);
  EXPECT_GT(reduced_elements, 0) << "before the end of the step";
  reducer.flush();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(buckets.sum(i), expected[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, LinearGradientBuckets,
                         testing::Values(Case{at::kFloat, false, false}, Case{at::kFloat, false, true},
                                         Case{at::kFloat, true, false}, Case{at::kFloat, true, true},
                                         Case{at::kBFloat16, false, false}, Case{at::kBFloat16, true, true}));

/// A sink for one parameter.
class FixedGradientSink : public nn::GradientSink {
 public:
  explicit FixedGradientSink(at::Tensor sum) : sum_(std::move(sum)) {}
  at::Tensor sum() const override { return sum_; }
  bool has_sum() const override { return has_sum_; }
  void set_has_sum() override { has_sum_ = true; }
  void operator()(const at::Tensor& /*parameter*/) override { ++calls; }

  int calls = 0;

 private:
  at::Tensor sum_;
  bool has_sum_ = false;
};

TEST(AddProductToSums, RequiresAdjacentSums) {
  const at::Tensor a = at::randn({6, 4}), b = at::randn({5, 4}), sums = at::zeros({12, 5});
  const auto make_parameter = [](const at::Tensor& sum) {
    at::Tensor parameter = at::randn({3, 5}).set_requires_grad(true);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<FixedGradientSink>(sum));
    return parameter;
  };
  const at::Tensor first = make_parameter(sums.narrow(0, 0, 3)), second = make_parameter(sums.narrow(0, 3, 3));
  const at::Tensor not_adjacent = make_parameter(sums.narrow(0, 9, 3)), without_sum = make_parameter({});
  EXPECT_FALSE(nn::add_product_to_gradient_sums({first, not_adjacent}, a, b));
  EXPECT_FALSE(nn::add_product_to_gradient_sums({first, without_sum}, a, b));
  EXPECT_FALSE(nn::add_product_to_gradient_sums({first, at::randn({3, 5}).set_requires_grad(true)}, a, b));
  EXPECT_TRUE(at::equal(sums, at::zeros_like(sums)));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(nn::add_product_to_gradient_sums({first, second}, a, b));
  EXPECT_LT(relative_difference(sums.narrow(0, 0, 6), 2 * at::mm(a, b.t())), 1e-6);
  EXPECT_TRUE(nn::add_product_to_gradient_sums({second}, a.narrow(0, 0, 3), b));
  EXPECT_FALSE(nn::add_product_to_gradient_sums({first, make_parameter(sums.narrow(0, 3, 3))}, a, b))
      << "only one has a sum";
}

}  // namespace
}  // namespace vlmtrain::engine
