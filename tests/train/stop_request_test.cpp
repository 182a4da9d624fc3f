#include "vlmtrain/train/stop_request.h"

#include <signal.h>
#include <unistd.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "vlmtrain/nn/matmul.h"

namespace vlmtrain::train {
namespace {

TEST(StopRequest, ASignalDuringAProductDoesNotHarmIt) {
  const at::Tensor x = at::randn({600, 192});
  const at::Tensor weight = at::randn({768, 192});
  const at::Tensor wanted = nn::matmul_transposed(x, weight);
  watch_stop_signals();
  {
    const std::jthread sender([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        kill(getpid(), SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(at::equal(nn::matmul_transposed(x, weight), wanted)) << i;
  }
  EXPECT_EQ(stop_signal(), SIGUSR1);
  signal(SIGUSR1, SIG_DFL);
}

}  // namespace
}  // namespace vlmtrain::train
