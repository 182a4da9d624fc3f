#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/patch_embedding.h"
#include "virtual_gpu/card.h"
#include "vlmtrain/engine/gradient_sums.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/gate.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/trace.h"
#include "vlmtrain/nn/dropout.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::kernels {
namespace {

/// All tests of this program run with our own kernels, where they are built, or with VLMTRAIN_TESTS_KERNELS=aten
/// without.
class EnvironmentOnACard : public testing::Environment {
 public:
  void SetUp() override {
    if (vgpu::attached() == nullptr) return;
    const char* const asked = std::getenv("VLMTRAIN_TESTS_KERNELS");
    const bool by_aten = asked != nullptr && std::string_view(asked) == "aten";
    const auto all = all_kernels();
    try {
      open_kernels(memory::open_device("cuda"), by_aten ? KernelSet(all.begin(), all.end()) : KernelSet());
    } catch (const std::exception&) {
      // A card without code in LibTorch, which tests of their own are about.
    }
  }
};

[[maybe_unused]] const testing::Environment* const kAdded = testing::AddGlobalTestEnvironment(new EnvironmentOnACard);

TEST(OwnKernelsOnACard, AreOneLaunchEachThatTheCardTakes) {
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0));
  const at::Tensor x = at::empty({5, 64}, options.dtype(at::kHalf));
  if (!has(Kernel::kGate, x)) GTEST_SKIP() << "own kernels are not built, or left out";
  const auto before = counters();
  gate(x, GateActivation::kSilu);
  gate_backward(at::empty({5, 32}, x.options()), x, GateActivation::kGeluTanh);
  cross_entropy(x, at::empty({5}, options.dtype(at::kLong)), 1, {}, /*gradient_wanted=*/true);
  const auto after = counters();
  EXPECT_EQ(after.launches - before.launches, 3U);
  EXPECT_EQ(after.rejected_launches, before.rejected_launches);
}

TEST(OwnKernelsOnACard, MakePatchesOfBytesInOneLaunchWithoutACopy) {
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kHalf);
  if (!has(Kernel::kPatches, at::empty({1}, options))) GTEST_SKIP() << "own kernels are not built, or left out";
  const image::Normalization half{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}, 1.0 / 255};
  const auto expect_one_launch = [&](const image::BytePixels& pixels, at::IntArrayRef weight) {
    const at::Tensor of_patches = at::empty(weight, options), bias = at::empty({weight[0]}, options);
    models::embedded_patches(pixels, of_patches, bias);  // cuBLAS gets its workspace
    const memory::AllocationTrace trace(options.device());
    card().reset();
    const int64_t patches = models::embedded_patches(pixels, of_patches, bias).size(0);
    const auto done = counters();
    const auto launches = launches_by_kernel();
    uint64_t own = 0;
    for (const auto& [name, count] : launches) own += name.find("patches_kernel") != std::string::npos ? count : 0;
    EXPECT_EQ(own, 1U);
    // The product, whose bias may be a launch of its own.
    EXPECT_LE(done.launches, 3U) << testing::PrintToString(launches);
    EXPECT_EQ(done.rejected_launches, 0U);
    EXPECT_EQ(done.host_to_device_pageable.calls + done.host_to_device_pinned.calls + done.device_to_device.calls, 0U);
    // No more room than for the rows and what comes of them.
    int64_t bytes = 0;
    for (const auto& event : trace.events()) bytes += std::max<int64_t>(0, event.bytes);
    EXPECT_LE(bytes, patches * (of_patches[0].numel() + weight[0]) * int64_t{2} + 4096);
  };
  const auto bytes = options.dtype(at::kByte);
  expect_one_launch({at::empty({2, 3, 336, 336}, bytes), half}, {64, 3, 14, 14});
  expect_one_launch({at::empty({2, 3, 384, 384}, bytes), half}, {64, 3, 14, 14});
  expect_one_launch({at::empty({2, 3, 512, 512}, bytes), half}, {64, 3, 16, 16});
  const at::Tensor order = at::empty({16}, options.dtype(at::kLong));
  expect_one_launch({at::empty({16, 3, 28, 14}, bytes), half, order}, {64, 3, 2, 14, 14});

  card().reset();
  models::normalized_pictures({at::empty({1, 3, 1024, 1024}, bytes), half}, at::kHalf);
  EXPECT_EQ(counters().launches, 1U);
  EXPECT_EQ(counters().rejected_launches, 0U);
}

/// No launch a sample, no copy, and no mask that is kept.
TEST(OwnKernelsOnACard, DropWhatAllAdaptersReadOfAllSamplesInOneLaunch) {
  const at::Tensor x = at::empty({12, 64}, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kHalf));
  if (!has(Kernel::kDropout, x)) GTEST_SKIP() << "own kernels are not built, or left out";
  const nn::DropoutScope scope(std::vector<nn::DropoutUnit>{{.seed = 1}, {.seed = 2}, {.seed = 3}, {.seed = 4}});
  card().reset();
  const memory::AllocationTrace trace(x.device());
  nn::ReadersDropout dropout(x, /*readers=*/3, /*probability=*/0.1, /*layer=*/1);
  EXPECT_TRUE(trace.events().empty());
  dropout.drop(x, [](int64_t /*reader*/, const at::Tensor& /*dropped*/) {});
  EXPECT_EQ(counters().launches, 1U);
  dropout.add_gradients(x, [](int64_t /*reader*/, const at::Tensor& place) { return place; });
  const auto done = counters();
  EXPECT_EQ(done.launches, 2U);
  EXPECT_EQ(done.rejected_launches, 0U);
  EXPECT_EQ(done.host_to_device_pinned.calls + done.host_to_device_pageable.calls, 0U);
  EXPECT_FALSE(dropout.take_masks().defined());
}

/// As many tensors as a model of 7 B parameters trains, and what an update of these takes from prepare() on.
TEST(OwnKernelsOnACard, UpdateHundredsOfTensorsInFewLaunchesWithoutRoomForChunks) {
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0));
  if (!has(Kernel::kAdamW, at::empty({1}, options))) GTEST_SKIP() << "own kernels are not built, or left out";
  constexpr int kMatrices = 300, kVectors = 400;
  for (const auto states :
       {engine::OptimizerStates::kFp32, engine::OptimizerStates::kBf16, engine::OptimizerStates::k8Bit}) {
    nn::ParameterStore store(options.dtype(at::kBFloat16));
    const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
    for (int i = 0; i < kMatrices; ++i) {
      scope.parameter("matrix" + std::to_string(i), {512, 512}, nn::InitialValues::zeros());
    }
    for (int i = 0; i < kVectors; ++i) {
      scope.parameter("vector" + std::to_string(i), {512}, nn::InitialValues::zeros());
    }
    engine::GradientSums sums(store);
    engine::AdamW optimizer(store, sums, {.states = states});
    for (const auto& parameter : store.all()) parameter.tensor.sum().backward();

    const memory::AllocationTrace trace(options.device());
    const auto update = optimizer.prepare(/*loss=*/{});
    int64_t bytes = 0;
    for (const auto& event : trace.events()) bytes += std::max<int64_t>(0, event.bytes);
    EXPECT_LE(bytes, int64_t{1} << 20);
    card().reset();
    optimizer.apply(update, {.language_model = 1e-5});
    const auto launches = launches_by_kernel();
    uint64_t moves = 0, all = 0;
    for (const auto& [name, count] : launches) {
      all += count;
      if (name.find("adamw_kernel") != std::string::npos) moves += count;
    }
    constexpr uint64_t kExpected = (kMatrices + kMostAdamWTensors - 1) / kMostAdamWTensors +
                                   (kVectors + kMostAdamWTensors - 1) / kMostAdamWTensors;
    EXPECT_EQ(moves, kExpected);
    EXPECT_LE(all - moves, 20U) << "the counts of steps";
  }
}

}  // namespace
}  // namespace vlmtrain::kernels
