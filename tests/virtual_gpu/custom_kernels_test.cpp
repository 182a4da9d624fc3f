#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/layers.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/row_alignment.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::kernels {
namespace {

/// Runs all tests of this program with the custom kernels if they are built, or without them if
/// VLMTRAIN_TESTS_KERNELS=aten.
class GpuKernelEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    if (vgpu::find_virtual_gpu_interface() == nullptr) return;
    const char* const setting = std::getenv("VLMTRAIN_TESTS_KERNELS");
    const bool use_aten = setting != nullptr && std::string_view(setting) == "aten";
    const auto all = list_kernels();
    try {
      open_kernels(memory::open_device("cuda"), use_aten ? KernelSet(all.begin(), all.end()) : KernelSet());
    } catch (const std::exception&) {
      // A GPU without code in LibTorch, which has tests of its own.
    }
  }
};

[[maybe_unused]] const testing::Environment* const kEnvironment =
    testing::AddGlobalTestEnvironment(new GpuKernelEnvironment);

TEST(CustomKernelsOnGpu, TakeOneLaunchEach) {
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0));
  const at::Tensor x = at::empty({5, 64}, options.dtype(at::kHalf));
  if (!is_available(Kernel::kGatedActivation, x)) GTEST_SKIP() << "custom kernels are not built, or disabled";
  const auto before = counters();
  gated_activation(x, GateActivation::kSilu);
  gated_activation_backward(at::empty({5, 32}, x.options()), x, GateActivation::kGeluTanh);
  cross_entropy(x, at::empty({5}, options.dtype(at::kLong)), 1, {}, /*compute_gradient=*/true);
  cross_entropy(x, at::empty({5}, options.dtype(at::kLong)), 1, {}, /*compute_gradient=*/true, /*logit_soft_cap=*/30);
  const auto after = counters();
  EXPECT_EQ(after.num_launches - before.num_launches, 4U);
  EXPECT_EQ(after.num_rejected_launches, before.num_rejected_launches);
}

TEST(CustomKernelsOnGpu, PatchifyInOneLaunchWithoutCopy) {
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kHalf);
  if (!is_available(Kernel::kPatchify, at::empty({1}, options)))
    GTEST_SKIP() << "custom kernels are not built, or disabled";
  const image::Normalization half_range{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}, 1.0 / 255};
  const auto expect_one_launch = [&](const image::ByteImages& pixels, at::IntArrayRef weight) {
    const at::Tensor weight_tensor = at::empty(weight, options), bias = at::empty({weight[0]}, options);
    models::embed_patches(pixels, weight_tensor, bias);  // cuBLAS allocates its workspace
    const memory::AllocationTrace trace(options.device());
    virtual_gpu().reset();
    const int64_t patches = models::embed_patches(pixels, weight_tensor, bias).size(0);
    const auto result = counters();
    const auto launches = launches_by_kernel();
    uint64_t num_patchify = 0;
    for (const auto& [name, count] : launches)
      num_patchify += name.find("patchify_kernel") != std::string::npos ? count : 0;
    EXPECT_EQ(num_patchify, 1U);
    // The matrix product, whose bias may be a launch of its own, and a copy of a weight whose rows are
    // not aligned.
    const int64_t patch_bytes = weight_tensor[0].numel(), columns = nn::align_width(patch_bytes, options);
    const uint64_t num_copy_launches = columns == patch_bytes ? 0 : 2;
    EXPECT_LE(result.num_launches, 3U + num_copy_launches) << testing::PrintToString(launches);
    EXPECT_EQ(result.num_rejected_launches, 0U);
    EXPECT_EQ(result.host_to_device_pageable.num_calls + result.host_to_device_pinned.num_calls +
                  result.device_to_device.num_calls,
              0U);
    // Only the rows, the results and the copy are allocated.
    int64_t bytes = 0;
    for (const auto& event : trace.events()) bytes += std::max<int64_t>(0, event.bytes);
    const int64_t copy_elements = columns == patch_bytes ? 0 : weight[0] * columns;
    EXPECT_LE(bytes, (patches * (columns + weight[0]) + copy_elements) * int64_t{2} + 4096);
  };
  const auto bytes = options.dtype(at::kByte);
  expect_one_launch({at::empty({2, 3, 336, 336}, bytes), half_range}, {64, 3, 14, 14});
  expect_one_launch({at::empty({2, 3, 384, 384}, bytes), half_range}, {64, 3, 14, 14});
  expect_one_launch({at::empty({2, 3, 512, 512}, bytes), half_range}, {64, 3, 16, 16});
  const at::Tensor order = at::empty({16}, options.dtype(at::kLong));
  expect_one_launch({at::empty({16, 3, 28, 14}, bytes), half_range, order}, {64, 3, 2, 14, 14});

  virtual_gpu().reset();
  models::normalize_images({at::empty({1, 3, 1024, 1024}, bytes), half_range}, at::kHalf);
  EXPECT_EQ(counters().num_launches, 1U);
  EXPECT_EQ(counters().num_rejected_launches, 0U);
}

/// One launch for all samples, no copy, and no stored mask.
TEST(CustomKernelsOnGpu, DropoutOfAllAdaptersTakesOneLaunch) {
  const at::Tensor x = at::empty({12, 64}, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kHalf));
  if (!is_available(Kernel::kDropout, x)) GTEST_SKIP() << "custom kernels are not built, or disabled";
  const nn::DropoutScope scope(std::vector<nn::DropoutSegment>{{.seed = 1}, {.seed = 2}, {.seed = 3}, {.seed = 4}});
  virtual_gpu().reset();
  const memory::AllocationTrace trace(x.device());
  nn::IndependentDropouts dropout(x, /*readers=*/3, /*probability=*/0.1, /*layer=*/1);
  EXPECT_TRUE(trace.events().empty());
  dropout.apply(x, [](int64_t /*reader*/, const at::Tensor& /*dropped*/) {});
  EXPECT_EQ(counters().num_launches, 1U);
  dropout.add_consumer_gradients(x, [](int64_t /*reader*/, const at::Tensor& gradient) { return gradient; });
  const auto result = counters();
  EXPECT_EQ(result.num_launches, 2U);
  EXPECT_EQ(result.num_rejected_launches, 0U);
  EXPECT_EQ(result.host_to_device_pinned.num_calls + result.host_to_device_pageable.num_calls, 0U);
  EXPECT_FALSE(dropout.take_masks().defined());
}

/// The number of trained tensors of a model of 7 B parameters, updated from prepare() on.
TEST(CustomKernelsOnGpu, UpdateHundredsOfTensorsInFewLaunches) {
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0));
  if (!is_available(Kernel::kAdamW, at::empty({1}, options)))
    GTEST_SKIP() << "custom kernels are not built, or disabled";
  constexpr int kMatrices = 300, kVectors = 400;
  for (const auto states :
       {engine::OptimizerStateDtype::kFp32, engine::OptimizerStateDtype::kBf16, engine::OptimizerStateDtype::k8Bit}) {
    nn::ParameterStore store(options.dtype(at::kBFloat16));
    const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
    for (int i = 0; i < kMatrices; ++i) {
      scope.add_parameter("matrix" + std::to_string(i), {512, 512}, nn::InitialValues::zeros());
    }
    for (int i = 0; i < kVectors; ++i) {
      scope.add_parameter("vector" + std::to_string(i), {512}, nn::InitialValues::zeros());
    }
    engine::GradientBuckets sums(store);
    engine::Optimizer optimizer(store, sums, {.state_dtype = states});
    for (const auto& parameter : store.all()) parameter.tensor.sum().backward();

    const memory::AllocationTrace trace(options.device());
    const auto update = optimizer.prepare(/*loss=*/{});
    int64_t bytes = 0;
    for (const auto& event : trace.events()) bytes += std::max<int64_t>(0, event.bytes);
    EXPECT_LE(bytes, int64_t{1} << 20);
    virtual_gpu().reset();
    optimizer.apply_update(update, {.language_model = 1e-5});
    const auto launches = launches_by_kernel();
    uint64_t num_adamw = 0, num_total = 0;
    for (const auto& [name, count] : launches) {
      num_total += count;
      if (name.find("adamw_kernel") != std::string::npos) num_adamw += count;
    }
    constexpr uint64_t kExpected = (kMatrices + kMaxAdamWTensorsPerLaunch - 1) / kMaxAdamWTensorsPerLaunch +
                                   (kVectors + kMaxAdamWTensorsPerLaunch - 1) / kMaxAdamWTensorsPerLaunch;
    EXPECT_EQ(num_adamw, kExpected);
    EXPECT_LE(num_total - num_adamw, 20U) << "the step counters";
  }
}

}  // namespace
}  // namespace vlmtrain::kernels
