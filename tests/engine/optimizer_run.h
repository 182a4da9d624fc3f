#pragma once

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"

namespace vlmtrain::engine {

using TensorsByName = std::map<std::string, at::Tensor>;

inline void expect_equal_tensors(const TensorsByName& actual, const TensorsByName& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : actual) EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
}

/// A run of an optimizer on bf16 weights. Runs of equal seeds have equal weights and gradients.
class OptimizerRun {
 public:
  OptimizerRun(uint64_t seed, const OptimizerSettings& settings, Offload offload = Offload::kNone)
      : parameters_(make_parameters(seed)), optimizer_(parameters_.store(), settings, /*groups=*/1, offload) {}

  void take_steps(uint64_t first, uint64_t count) {
    for (uint64_t step = first; step < first + count; ++step) {
      add_gradients(parameters_, random_gradients(parameters_, step, 1.0));
      optimizer_.step({1e-3, 1e-3, 1e-3});
    }
  }

  TensorsByName copy_weights() {
    TensorsByName copy;
    for (const auto& parameter : parameters_.store().all()) copy[parameter.name] = parameter.tensor.detach().clone();
    return copy;
  }
  TensorsByName copy_state() const { return copy_tensors(optimizer_.state()); }

  void set_weights(const OptimizerRun& other) { parameters_.copy_from(other.parameters_); }
  BucketedOptimizer& optimizer() { return optimizer_; }
  nn::ParameterStore& store() { return parameters_.store(); }

 private:
  static Parameters make_parameters(uint64_t seed) {
    at::manual_seed(seed);
    return Parameters(at::kBFloat16, /*large=*/true);
  }

  Parameters parameters_;
  BucketedOptimizer optimizer_;
};

}  // namespace vlmtrain::engine
