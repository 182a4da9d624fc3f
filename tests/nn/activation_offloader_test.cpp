#include "vlmtrain/nn/layers/activation_offloader.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/layers/recompute.h"

namespace vlmtrain::nn {
namespace {

using SavedTensors = std::vector<std::unique_ptr<ActivationOffloader::SavedTensor>>;

constexpr int64_t kTensorBytes = 1024;

at::Tensor make_tensor(int64_t bytes = kTensorBytes) {
  return at::randn({bytes / 4});
}

TEST(ActivationOffloaderTest, LoadsTheSavedValuesInAnyOrder) {
  ActivationOffloader offloader(at::kCPU, std::nullopt);
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): a fixed seed
  for (int round = 0; round < 20; ++round) {
    std::vector<at::Tensor> values;
    SavedTensors saved;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kFloat, at::kDouble})
      values.push_back(at::randn({static_cast<int64_t>(1 + random() % 900), 3}).to(type));
    for (const auto& tensor : values) saved.push_back(offloader.save(tensor));
    std::vector<size_t> order{4, 3, 2, 1, 0};
    if (round > 0) std::ranges::shuffle(order, random);
    for (const size_t i : order) EXPECT_TRUE(at::equal(saved[i]->load(), values[i])) << round << ": " << i;
  }
}

TEST(ActivationOffloaderTest, CopiesDoNotShareMemoryWithTheTensor) {
  ActivationOffloader offloader(at::kCPU, std::nullopt);
  const at::Tensor first = make_tensor(), expected = first.clone();
  const auto saved = offloader.save(first), next = offloader.save(make_tensor());
  first.zero_();
  EXPECT_TRUE(at::equal(saved->load(), expected));
}

TEST(ActivationOffloaderTest, MemoryIsReusedAfterLoadAndAfterDestruction) {
  ActivationOffloader offloader(at::kCPU, 3 * kTensorBytes);
  for (int pass = 0; pass < 3; ++pass) {
    SavedTensors saved;
    for (int i = 0; i < 3; ++i) {
      saved.push_back(offloader.save(make_tensor()));
      ASSERT_NE(saved.back(), nullptr);
    }
    EXPECT_EQ(offloader.save(make_tensor()), nullptr) << "the memory is full";
    saved[2]->load();
    EXPECT_NE(offloader.save(make_tensor()), nullptr);
    saved[0].reset();  // as a failed pass does, in any order
    EXPECT_EQ(offloader.save(make_tensor(2 * kTensorBytes)), nullptr) << "freed below a tensor that remains";
  }
  EXPECT_EQ(offloader.peak_bytes(), 3 * kTensorBytes);
}

TEST(ActivationOffloaderTest, GrowsWithoutALimit) {
  ActivationOffloader offloader(at::kCPU, std::nullopt);
  SavedTensors saved;
  constexpr int64_t kLargeBytes = int64_t{1} << 25;
  std::vector<at::Tensor> values;
  for (int i = 0; i < 5; ++i) {
    values.push_back(at::zeros({kLargeBytes / 4}) + i);
    saved.push_back(offloader.save(values.back()));
  }
  EXPECT_EQ(offloader.peak_bytes(), 5 * kLargeBytes);
  for (size_t i = 5; i-- > 0;) EXPECT_TRUE(at::equal(saved[i]->load(), values[i]));
}

TEST(ActivationOffloaderTest, StridesRemain) {
  ActivationOffloader offloader(at::kCPU, std::nullopt);
  const at::Tensor wide = at::randn({9, 40});
  for (const at::Tensor& tensor : {wide.t(), wide.narrow(1, 3, 32), wide.narrow(0, 2, 5).narrow(1, 0, 21), wide[3]}) {
    for (const bool is_last : {true, false}) {
      const auto saved = offloader.save(tensor);
      const auto next = is_last ? nullptr : offloader.save(make_tensor());
      ASSERT_NE(saved, nullptr);
      const at::Tensor loaded = saved->load();
      EXPECT_TRUE(at::equal(loaded, tensor));
      EXPECT_EQ(loaded.strides(), tensor.strides());
    }
  }
}

TEST(ActivationOffloaderTest, LeavesTensorsThatAreEmptyOrASmallPartOfTheirRange) {
  ActivationOffloader offloader(at::kCPU, std::nullopt);
  EXPECT_EQ(offloader.save(at::randn({9, 40}).narrow(1, 0, 10)), nullptr);
  EXPECT_EQ(offloader.save(at::randn({1, 6}).expand({5, 6})), nullptr);
  EXPECT_EQ(offloader.save(at::randn({0, 6})), nullptr);
  EXPECT_EQ(offloader.peak_bytes(), 0);
}

TEST(ActivationOffloaderTest, ATensorIsLoadedOnce) {
  ActivationOffloader offloader(at::kCPU, std::nullopt);
  const auto saved = offloader.save(make_tensor());
  saved->load();
  EXPECT_THROW(saved->load(), InternalError);
}

/// Gradients of a chain of checkpointed blocks with these bytes of host memory.
std::vector<at::Tensor> compute_gradients(ActivationOffloader* offloader) {
  const at::Tensor input = at::zeros({8, 8}).fill_(0.5).requires_grad_();
  std::vector<at::Tensor> leaves{input};
  at::Tensor hidden = input;
  for (int i = 0; i < 4; ++i) {
    const at::Tensor weight = (at::zeros({8, 8}) + 0.1 * (i + 1)).requires_grad_();
    leaves.push_back(weight);
    const auto block = [weight](const std::vector<at::Tensor>& inputs) {
      return std::vector{(inputs.front() * weight).tanh()};
    };
    hidden = run_checkpointed(block, {hidden}, {weight}, CheckpointMode::kFull, offloader).front();
  }
  hidden.sum().backward();
  std::vector<at::Tensor> gradients;
  for (const auto& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

TEST(ActivationOffloaderTest, GradientsOfCheckpointedBlocksAreEqualWithFullAndTooLittleMemory) {
  const auto expected = compute_gradients(nullptr);
  constexpr int64_t kInputBytes = 512;  // 256, aligned
  for (const auto max_bytes : {std::optional<int64_t>(), std::optional(int64_t{0}), std::optional(2 * kInputBytes)}) {
    ActivationOffloader offloader(at::kCPU, max_bytes);
    const auto gradients = compute_gradients(&offloader);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(gradients[i], expected[i])) << i;
    EXPECT_EQ(offloader.peak_bytes(), max_bytes.value_or(4 * kInputBytes));
  }
}

}  // namespace
}  // namespace vlmtrain::nn
