// State in host memory. On the CPU it is ordinary memory, but takes the same paths.

#include <gtest/gtest.h>

#include <tuple>

#include "engine/optimizer_run.h"

namespace vlmtrain::engine {
namespace {

constexpr uint64_t kSeed = 5;

class OffloadedState : public testing::TestWithParam<std::tuple<OptimizerStateDtype, MasterWeights>> {
 protected:
  static OptimizerSettings settings() {
    return {.weight_decay = 0.1, .state_dtype = std::get<0>(GetParam()), .master_weights = std::get<1>(GetParam())};
  }
};

TEST_P(OffloadedState, EqualsResidentState) {
  OptimizerRun resident(kSeed, settings()), offloaded(kSeed, settings(), Offload::kOptimizer);
  EXPECT_EQ(resident.optimizer().host_bytes(), 0);
  for (auto* run : {&resident, &offloaded}) run->take_steps(0, 4);
  OptimizerRun resumed(kSeed, settings(), Offload::kOptimizer);
  resumed.set_weights(resident);
  resumed.optimizer().load_state(resident.copy_state(), "a checkpoint");
  for (auto* run : {&resident, &offloaded, &resumed}) run->take_steps(4, 3);
  for (auto* run : {&offloaded, &resumed}) {
    expect_equal_tensors(run->copy_weights(), resident.copy_weights());
    expect_equal_tensors(run->copy_state(), resident.copy_state());
  }
}

/// Host memory has the moments and masters of tensors with at least 4,096 elements; scales of 8-bit
/// moments stay on the device.
TEST_P(OffloadedState, TakesTheBytesOfLargeTensors) {
  OptimizerRun run(kSeed, settings(), Offload::kOptimizer);
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
  EXPECT_EQ(run.optimizer().host_bytes(), expected);
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
