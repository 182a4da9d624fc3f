#include "vlmtrain/train/stop_request.h"

#include <signal.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "parity/case.h"
#include "vlmtrain/engine/step.h"

namespace vlmtrain::train {
namespace {

TEST(StopRequest, SignalsDuringAStepDoNotHarmIt) {
  at::set_num_threads(1);
  const parity::Case reference("mixed_batch");
  const auto samples = reference.samples();
  const auto model = reference.load_model();
  const auto loss = [&] {
    for (const auto& parameter : model->parameters().all()) parameter.tensor.mutable_grad().reset();
    return engine::accumulate_gradients(*model, samples, {.micro_batch_size = 2}).loss.item<double>();
  };
  const double wanted = loss();
  watch_stop_signals();
  {
    const std::jthread sender([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        kill(getpid(), SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    for (int i = 0; i < 20; ++i) ASSERT_EQ(loss(), wanted) << i;
  }
  EXPECT_EQ(stop_signal(), SIGUSR1);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) ::signal(signal, SIG_DFL);
}

}  // namespace
}  // namespace vlmtrain::train
