#include "vlmtrain/engine/optimizer/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "engine/stored_tensors.h"
#include "gpu/gpu.h"
#include "vlmtrain/engine/settings/options.h"

namespace vlmtrain::gpu {
namespace {

/// Parameters of an optimizer, equal on every device.
class Weights {
 public:
  Weights(at::Device device, at::ScalarType dtype) : device_(device), store_(at::TensorOptions(dtype).device(device)) {
    const nn::ParameterScope scope(store_, nn::Component::kLanguageModel, "model");
    for (const auto& [name, sizes] :
         {std::pair<std::string, std::vector<int64_t>>{"large", {300, 410}}, {"small", {7, 11}}, {"bias", {64}}}) {
      scope.add_parameter(name, sizes, nn::InitialValues::zeros());
    }
    at::manual_seed(6);
    for (const auto& parameter : store_.all()) parameter.tensor.detach().copy_(at::randn(parameter.tensor.sizes()));
  }

  nn::ParameterStore& store() { return store_; }

  /// Random gradients, equal on every device.
  void add_gradients(int step) {
    at::manual_seed(static_cast<uint64_t>(100 + step));
    for (const auto& parameter : store_.all()) {
      const at::Tensor gradient = at::randn(parameter.tensor.sizes()).to(parameter.tensor.options());
      (parameter.tensor * gradient).sum().backward();
    }
  }

 private:
  at::Device device_;
  nn::ParameterStore store_;
};

std::map<std::string, at::Tensor> run_three_steps(at::Device device, at::ScalarType dtype,
                                                  engine::OptimizerStateDtype states,
                                                  engine::Offload offload = engine::Offload::kNone) {
  Weights weights(device, dtype);
  engine::GradientBuckets sums(weights.store());
  engine::Optimizer optimizer(weights.store(), sums, {.weight_decay = 0.1, .state_dtype = states}, offload);
  for (int step = 0; step < 3; ++step) {
    weights.add_gradients(step);
    optimizer.step({1e-2, 1e-2, 1e-2});
  }
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : read_tensors(optimizer.state())) tensors[name] = tensor.cpu();
  for (const auto& parameter : weights.store().all())
    tensors["weight." + parameter.name] = parameter.tensor.detach().cpu();
  return tensors;
}

class GpuOptimizer : public GpuTest,
                     public testing::WithParamInterface<std::tuple<at::ScalarType, engine::OptimizerStateDtype>> {};

TEST_P(GpuOptimizer, UpdatesMatchCpu) {
  const auto [dtype, states] = GetParam();
  if (dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const auto expected = run_three_steps(at::kCPU, dtype, states);
  const auto actual = run_three_steps(device_, dtype, states);
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const at::Tensor gpu_tensor = fetch_result(actual.at(name));
    if (tensor.scalar_type() == at::kByte) {
      // A value at a bound of two codes may get either.
      deviations_.expect_at_most(1e-3, gpu_tensor.ne(tensor).to(at::kDouble).mean().item<double>(), "codes that differ",
                                 name);
      continue;
    }
    double bound = kFp32Bound;
    if (tensor.scalar_type() == at::kBFloat16 && name.find("moment") != std::string::npos) {
      bound = 4 * unit_roundoff(
                      at::kBFloat16);  // stochastic rounding has other random numbers on a GPU; up to one unit per step
    } else if (states != engine::OptimizerStateDtype::kFp32 && tensor.numel() >= 4096) {
      bound = 1e-3;  // a moment with another code changes its weight by a fraction of the learning rate
    } else if (tensor.scalar_type() != at::kFloat) {
      bound = unit_roundoff(tensor.scalar_type()) / 4;  // ties round either way, for few weights
    }
    deviations_.expect_at_most(bound, parity::relative_difference(gpu_tensor, tensor), "state", name);
  }
}

TEST_P(GpuOptimizer, StateInHostMemoryEqualsResidentState) {
  const auto [dtype, states] = GetParam();
  if (dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const auto expected = run_three_steps(device_, dtype, states);
  const auto actual = run_three_steps(device_, dtype, states, engine::Offload::kOptimizer);
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(fetch_result(actual.at(name)), tensor)) << name;
}

INSTANTIATE_TEST_SUITE_P(Of, GpuOptimizer,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values(engine::OptimizerStateDtype::kFp32,
                                                          engine::OptimizerStateDtype::kBf16,
                                                          engine::OptimizerStateDtype::k8Bit)),
                         [](const auto& instance) {
                           return short_name(std::get<0>(instance.param)) + "_with_states_in_" +
                                  engine::to_string(std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace vlmtrain::gpu
