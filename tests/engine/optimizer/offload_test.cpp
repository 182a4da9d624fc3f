// State in host memory. On the CPU it is ordinary memory, but takes the same paths.

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"

namespace vlmtrain::engine {
namespace {

/// A run of an optimizer on bf16 weights, equal for each placement of its state.
class OffloadedRun {
 public:
  OffloadedRun(const OptimizerSettings& settings, Offload offload)
      : optimizer_(parameters_.store(), settings, /*groups=*/1, offload) {}

  void take_steps(uint64_t first, uint64_t count) {
    for (uint64_t step = first; step < first + count; ++step) {
      add_gradients(parameters_, random_gradients(parameters_, step, 1.0));
      optimizer_.step({1e-3, 1e-3, 1e-3});
    }
  }

  std::map<std::string, at::Tensor> copy_everything() {
    auto copy = copy_tensors(optimizer_.state());
    for (const auto& parameter : parameters_.store().all()) copy[parameter.name] = parameter.tensor.detach().clone();
    return copy;
  }

  void copy_from(OffloadedRun& other) {
    parameters_.copy_from(other.parameters_);
    optimizer_.load_state(copy_tensors(other.optimizer_.state()), "a checkpoint");
  }

  int64_t host_bytes() const { return optimizer_.host_bytes(); }
  nn::ParameterStore& store() { return parameters_.store(); }

 private:
  static uint64_t seed() {
    at::manual_seed(5);
    return 0;
  }

  uint64_t seed_ = seed();
  Parameters parameters_{at::kBFloat16, /*large=*/true};
  BucketedOptimizer optimizer_;
};

class OffloadedState : public testing::TestWithParam<std::tuple<OptimizerStateDtype, MasterWeights>> {
 protected:
  static OptimizerSettings settings() {
    return {.weight_decay = 0.1, .state_dtype = std::get<0>(GetParam()), .master_weights = std::get<1>(GetParam())};
  }
};

TEST_P(OffloadedState, EqualsResidentState) {
  OffloadedRun resident(settings(), Offload::kNone), offloaded(settings(), Offload::kOptimizer);
  EXPECT_EQ(resident.host_bytes(), 0);
  for (auto* run : {&resident, &offloaded}) run->take_steps(0, 4);
  OffloadedRun resumed(settings(), Offload::kOptimizer);
  resumed.copy_from(resident);
  for (auto* run : {&resident, &offloaded, &resumed}) run->take_steps(4, 3);
  const auto expected = resident.copy_everything();
  for (auto* run : {&offloaded, &resumed}) {
    const auto actual = run->copy_everything();
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, tensor] : actual) EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
  }
}

/// Host memory has the moments and masters of tensors with at least 4,096 elements; scales of 8-bit
/// moments stay on the device.
TEST_P(OffloadedState, TakesTheBytesOfLargeTensors) {
  OffloadedRun run(settings(), Offload::kOptimizer);
  const auto [state_dtype, master_weights] = GetParam();
  const int64_t master_bytes = master_weights == MasterWeights::kFp32    ? 4
                               : master_weights == MasterWeights::kSplit ? 2
                                                                         : 0;
  int64_t expected = 0;
  for (const auto& parameter : run.store().all()) {
    const int64_t elements = parameter.elements();
    if (elements < 4096) continue;
    const int64_t padded = (elements + 255) / 256 * 256;
    const bool is_compressed = state_dtype == OptimizerStateDtype::kBf16 ||
                               (state_dtype == OptimizerStateDtype::k8Bit && !parameter.is_embedding);
    expected += elements * master_bytes;
    if (!is_compressed) expected += 2 * 4 * elements;
    if (is_compressed) expected += 2 * padded * (state_dtype == OptimizerStateDtype::kBf16 ? 2 : 1);
  }
  EXPECT_GT(expected, 0);
  EXPECT_EQ(run.host_bytes(), expected);
}

INSTANTIATE_TEST_SUITE_P(Formats, OffloadedState,
                         testing::Combine(testing::Values(OptimizerStateDtype::kFp32, OptimizerStateDtype::kBf16,
                                                          OptimizerStateDtype::k8Bit),
                                          testing::Values(MasterWeights::kFp32, MasterWeights::kSplit,
                                                          MasterWeights::kStochastic)),
                         [](const auto& instance) {
                           return "With_" + to_string(std::get<0>(instance.param)) + "_" +
                                  to_string(std::get<1>(instance.param));
                         });

TEST(OffloadedMuon, StaysOnTheDevice) {
  nn::ParameterStore store(at::TensorOptions(at::kBFloat16));
  (nn::ParameterScope(store, nn::Component::kLanguageModel, "model") / "linear")
      .add_linear_weight({64, 128}, nn::InitialValues::ones());
  const auto count_host_bytes = [&](OptimizerKind kind) {
    return BucketedOptimizer(store, {.kind = kind}, /*groups=*/1, Offload::kOptimizer).host_bytes();
  };
  EXPECT_EQ(count_host_bytes(OptimizerKind::kMuon), 0);
  EXPECT_EQ(count_host_bytes(OptimizerKind::kAdamW), 64 * 128 * (2 * 4 + 4));
}

}  // namespace
}  // namespace vlmtrain::engine
