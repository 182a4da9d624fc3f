#include "vlmtrain/train/stop_request.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "engine/small_step.h"
#include "parity/case.h"

namespace vlmtrain::train {
namespace {

/// Whether a loss is the same to the bit while signals arrive, and the last of them was noted.
bool is_unharmed_by_signals() {
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
  bool same = true;
  {
    const std::jthread sender([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        kill(getpid(), SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    for (int i = 0; i < 20; ++i) same = same && loss() == wanted;
  }
  return same && stop_signal() == SIGUSR1;
}

/// In a process of its own: a stop that was asked for is never taken back, and other tests train.
TEST(StopRequest, SignalsDuringAStepDoNotHarmIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(is_unharmed_by_signals() ? 0 : 1), testing::ExitedWithCode(0), "");
}

constexpr int kWentOn = 10;
constexpr int kLeft = 75;
constexpr int kLate = 11;

/// The status of a process that does `what`; signals that watch_stop_signals() respects are as `ignored` says.
int status_of(const std::function<int()>& what, void (*disposition)(int) = SIG_DFL) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) ::signal(signal, disposition);
    _exit(what());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

int exit_code_of(const std::function<int()>& what, void (*disposition)(int) = SIG_DFL) {
  const int status = status_of(what, disposition);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void leave(int signal) {
  _exit(signal == stop_signal() ? kLeft : 0);
}

int wait_to_be_left() {
  std::this_thread::sleep_for(std::chrono::seconds(60));
  return kLate;
}

TEST(StopRequest, BeforeTheStepsItIsAnsweredAtOnceWhateverTheMainThreadDoes) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) {
    EXPECT_EQ(exit_code_of([signal] {
                watch_stop_signals(leave);
                kill(getpid(), signal);
                return wait_to_be_left();
              }),
              kLeft)
        << signal;
  }
}

TEST(StopRequest, WhatComesWhileTheProgramLoadsIsAnsweredOnceItHas) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    EXPECT_EQ(exit_code_of([signal] {
                hold_stop_signals();
                kill(getpid(), signal);
                watch_stop_signals(leave);
                return wait_to_be_left();
              }),
              kLeft)
        << signal;
  }
}

TEST(StopRequest, WhatGoesWrongMeanwhileIsNoErrorToReport) {
  EXPECT_EQ(exit_code_of([] {
              watch_stop_signals([](int) {
                std::this_thread::sleep_for(std::chrono::milliseconds(100));  // such as to remove files
                _exit(kLeft);
              });
              raise(SIGTERM);
              wait_if_leaving();
              return kWentOn;
            }),
            kLeft);
}

TEST(StopRequest, BetweenStepsItIsOnlyNoted) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) {
    EXPECT_EQ(exit_code_of([signal] {
                watch_stop_signals(leave);
                stop_between_steps();
                raise(signal);
                wait_if_leaving();
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                return stop_signal() == signal ? kWentOn : 0;
              }),
              kWentOn)
        << signal;
  }
}

TEST(StopRequest, NothingHappensWithoutASignal) {
  EXPECT_EQ(exit_code_of([] {
              watch_stop_signals(leave);
              wait_if_leaving();
              stop_between_steps();
              return stop_signal() == 0 ? kWentOn : 0;
            }),
            kWentOn);
}

/// From the terminal, from a launcher, and from the launcher's own launcher.
TEST(StopRequest, OneInterruptThatArrivesSeveralTimesIsOneRequest) {
  EXPECT_EQ(exit_code_of([] {
              watch_stop_signals(leave);
              stop_between_steps();
              for (int time = 0; time < 3; ++time) raise(SIGINT);
              raise(SIGTERM);
              raise(SIGINT);
              return stop_signal() == SIGINT ? kWentOn : 0;
            }),
            kWentOn);
}

TEST(StopRequest, ASecondInterruptEndsAtOnce) {
  const int status = status_of([] {
    watch_stop_signals(leave);
    stop_between_steps();
    raise(SIGINT);
    std::this_thread::sleep_for(std::chrono::duration<double>(kSecondsOfOneInterrupt + 0.05));
    raise(SIGINT);
    return kWentOn;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(StopRequest, WhatWasIgnoredAtTheStartStaysSoButNotTheRequestsOfABatchSystem) {
  for (const int signal : {SIGINT, SIGHUP, SIGPIPE}) {
    EXPECT_EQ(exit_code_of(
                  [signal] {
                    watch_stop_signals(leave);
                    raise(signal);
                    wait_if_leaving();
                    return stop_signal() == 0 ? kWentOn : 0;
                  },
                  SIG_IGN),
              kWentOn)
        << signal;
  }
  for (const int signal : {SIGTERM, SIGUSR1}) {
    EXPECT_EQ(exit_code_of(
                  [signal] {
                    watch_stop_signals(leave);
                    raise(signal);
                    return wait_to_be_left();
                  },
                  SIG_IGN),
              kLeft)
        << signal;
  }
}

}  // namespace
}  // namespace vlmtrain::train
