#include "models/network/tiny_vit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain {
namespace {

/// MobileSAM's encoder on one image of 1024×1024.
class TinyVitOnGpu : public testing::TestWithParam<at::ScalarType> {
 protected:
  void run_forward_backward(int64_t recomputed_blocks) {
    const at::Tensor features = encoder_(pixels_, recomputed_blocks);
    features.backward(at::ones_like(features));
    for (const nn::Parameter& parameter : store_.all()) {
      at::Tensor tensor = parameter.tensor;
      tensor.mutable_grad() = at::Tensor();
    }
  }

  const at::TensorOptions options_ = at::TensorOptions(GetParam()).device(memory::open_device("cuda"));
  nn::ParameterStore store_{options_};
  const models::TinyVit encoder_{{store_, nn::Component::kMaskEncoder, "image_encoder"}, {}};
  const at::Tensor pixels_ = at::empty({1, 3, 1024, 1024}, options_);
};

TEST_P(TinyVitOnGpu, LaunchesAreAcceptedAndNeverSynchronize) {
  for (const int64_t recomputed_blocks : {int64_t{0}, encoder_.num_blocks()}) {
    run_forward_backward(recomputed_blocks);
    virtual_gpu().reset();
    run_forward_backward(recomputed_blocks);
    const auto result = counters();
    EXPECT_GT(result.num_launches, 0U);
    EXPECT_EQ(result.num_rejected_launches, 0U);
    EXPECT_EQ(unmodeled_calls(), (std::map<std::string, uint64_t>{}));
    EXPECT_EQ(result.device_to_host_pinned.num_calls + result.device_to_host_pageable.num_calls, 0U);
    EXPECT_EQ(result.host_to_device_pinned.num_calls + result.host_to_device_pageable.num_calls, 0U);
    EXPECT_EQ(
        result.num_stream_synchronizations + result.num_event_synchronizations + result.num_device_synchronizations,
        0U);
    EXPECT_EQ(result.num_blocking_copies, 0U);
  }
}

TEST_P(TinyVitOnGpu, RecomputationSavesMemory) {
  const at::Device device = pixels_.device();
  const auto measure_peak = [&](int64_t recomputed_blocks) {
    run_forward_backward(recomputed_blocks);
    memory::reset_peak_memory_stats(device);
    const int64_t before = memory::get_device_memory_stats(device).allocated_bytes;
    run_forward_backward(recomputed_blocks);
    return memory::get_device_memory_stats(device).allocated_peak_bytes - before;
  };
  EXPECT_LT(2 * measure_peak(encoder_.num_blocks()), measure_peak(0));
}

INSTANTIATE_TEST_SUITE_P(, TinyVitOnGpu, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& instance) { return c10::toString(instance.param); });

}  // namespace
}  // namespace vlmtrain
