#include "train/oom_guard.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "virtual_gpu/card.h"
#include "virtual_gpu/small_run.h"

namespace vlmtrain::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// PyTorch's own out-of-memory errors: the card is made smaller until a step does not fit.
TEST(OomGuardTest, DoesAStepAgainOnACardThatIsTooSmall) {
  SmallRun run({.micro_batch_size = 8, .repeats = 2});
  const at::Device device = memory::open_device("cuda");
  std::vector<int64_t> next_micro_batches;
  OomGuard guard(run.model(), run.optimizer(), device, [&](const std::string& reason, const engine::StepLayout& next) {
    EXPECT_NE(reason.find("out of memory"), std::string::npos) << reason;
    next_micro_batches.push_back(std::ssize(next.micro_batches));
  });
  engine::StepLayout layout;
  layout.micro_batches = {std::ssize(run.samples())};
  const auto step = [&] {
    return guard.step(run.samples(), layout, /*seed=*/1, [] { return engine::LearningRates{1e-4, 1e-4, 1e-4}; });
  };
  ASSERT_EQ(step().failed_attempts, 0);

  at::Tensor filled;
  int64_t failed_attempts = 0;
  for (int64_t room = 512; failed_attempts == 0 && room > 0; room = room * 9 / 10) {
    filled.reset();
    memory::release_unused(device);
    const int64_t taken = memory::free_bytes(device) - room * kMiB;
    filled = at::empty({taken}, at::TensorOptions(at::kByte).device(device));
    card().reset();
    failed_attempts = step().failed_attempts;
  }
  EXPECT_GT(failed_attempts, 0);
  EXPECT_EQ(std::ssize(next_micro_batches), failed_attempts);
  EXPECT_EQ(next_micro_batches.front(), 2);
  EXPECT_GT(counters().failed_allocations, 0U);
  EXPECT_EQ(counters().rejected_launches, 0U);

  filled.reset();
  memory::release_unused(device);
  EXPECT_EQ(step().failed_attempts, 0) << "with room again";
}

}  // namespace
}  // namespace vlmtrain::train
