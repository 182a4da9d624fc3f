#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::engine {
namespace {

enum class AdamWBackend { kAten, kCustom };

struct MomentCase {
  const char* name;
  at::ScalarType dtype;
  OptimizerStateDtype states;
  MasterWeights masters = MasterWeights::kFp32;
};

/// Custom kernel (emulated) and ATen: a run may resume with the other one (training.kernels).
class AdamWBackends : public testing::TestWithParam<MomentCase> {
 protected:
  void SetUp() override {
    if (!kernels::is_available(kernels::Kernel::kAdamW, at::ones({})))
      GTEST_SKIP() << "needs VLMTRAIN_EMULATED_KERNELS";
  }
  void TearDown() override { select_backend(AdamWBackend::kCustom); }

  static void select_backend(AdamWBackend backend) {
    kernels::open_kernels(at::kCPU, backend == AdamWBackend::kCustom ? kernels::KernelSet()
                                                                     : kernels::KernelSet{kernels::Kernel::kAdamW});
  }
  static OptimizerSettings settings() {
    return {.adamw = {.beta2 = 0.99},
            .weight_decay = 0.1,
            .state_dtype = GetParam().states,
            .master_weights = GetParam().masters};
  }

  static void take_steps(Parameters& parameters, Optimizer& optimizer, uint64_t first) {
    for (uint64_t step = first; step < first + 3; ++step) {
      add_gradients(parameters, random_gradients(parameters, step, 1.0));
      optimizer.step({1e-2, 1e-2, 1e-2});
    }
  }

  /// Returns the trained values after three steps with one backend and three more with the other,
  /// after loading the state.
  static std::map<std::string, at::Tensor> train(AdamWBackend first, AdamWBackend second) {
    at::manual_seed(3);
    Parameters parameters(GetParam().dtype, /*large=*/true);
    std::map<std::string, at::Tensor> state;
    {
      select_backend(first);
      BucketedOptimizer optimizer(parameters.store(), settings());
      take_steps(parameters, optimizer, 0);
      state = copy_tensors(optimizer.state());
    }
    select_backend(second);
    BucketedOptimizer optimizer(parameters.store(), settings());
    optimizer.load_state(state, "a checkpoint of the other way");
    take_steps(parameters, optimizer, 3);
    return copy_tensors(optimizer.master_weights());
  }
};

TEST_P(AdamWBackends, ResumeFromEachOthersState) {
  const auto expected = train(AdamWBackend::kAten, AdamWBackend::kAten);
  // fp32: rounding. 8 bits: few moments that rounding moved to the neighboring code. bf16: other
  // random numbers round to 1/256, which changes a step of 1e-2 as much.
  const bool is_bf16 = GetParam().states == OptimizerStateDtype::kBf16;
  const double mean = is_bf16 ? 1e-4 : 3e-7,
               max_deviation = GetParam().states == OptimizerStateDtype::kFp32 ? 2e-6 : 2e-3;
  for (const auto& [first, second] : {std::pair{AdamWBackend::kAten, AdamWBackend::kCustom},
                                      {AdamWBackend::kCustom, AdamWBackend::kAten},
                                      {AdamWBackend::kCustom, AdamWBackend::kCustom}}) {
    for (const auto& [name, values] : train(first, second)) {
      const at::Tensor deviation = (values - expected.at(name)).abs();
      EXPECT_LT(deviation.mean().item<double>(), mean) << name;
      EXPECT_LT(deviation.max().item<double>(), max_deviation) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Moments, AdamWBackends,
    testing::Values(MomentCase{"Fp32", at::kFloat, OptimizerStateDtype::kFp32},
                    MomentCase{"Bf16Weights", at::kBFloat16, OptimizerStateDtype::kFp32},
                    MomentCase{"Bf16", at::kBFloat16, OptimizerStateDtype::kBf16},
                    MomentCase{"EightBits", at::kBFloat16, OptimizerStateDtype::k8Bit},
                    MomentCase{"Split", at::kBFloat16, OptimizerStateDtype::kFp32, MasterWeights::kSplit},
                    MomentCase{"SplitEightBits", at::kBFloat16, OptimizerStateDtype::k8Bit, MasterWeights::kSplit}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::engine
