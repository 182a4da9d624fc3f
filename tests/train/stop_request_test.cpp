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

/// Returns whether a loss is the same to the bit while signals arrive, and the last signal was
/// recorded.
bool is_loss_unchanged_by_signals() {
  at::set_num_threads(1);
  const parity::Case reference("mixed_batch");
  const auto samples = reference.samples();
  const auto model = reference.load_model();
  const auto loss = [&] {
    for (const auto& parameter : model->parameters().all()) parameter.tensor.mutable_grad().reset();
    return engine::accumulate_gradients(*model, samples, {.micro_batch_size = 2}).loss.item<double>();
  };
  const double expected = loss();
  install_stop_handlers();
  bool is_same = true;
  {
    const std::jthread sender([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        kill(getpid(), SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    for (int i = 0; i < 20; ++i) is_same = is_same && loss() == expected;
  }
  return is_same && get_stop_signal() == SIGUSR1;
}

/// Runs in a child process, since a stop request cannot be withdrawn and other tests train.
TEST(StopRequest, SignalsDoNotChangeAStep) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(is_loss_unchanged_by_signals() ? 0 : 1), testing::ExitedWithCode(0), "");
}

constexpr int kContinuedCode = 10;
constexpr int kExitedCode = 75;
constexpr int kTimedOutCode = 11;

/// Returns the status of a process that calls `function`; signals that install_stop_handlers()
/// respects have `disposition`.
int run_in_child(const std::function<int()>& function, void (*disposition)(int) = SIG_DFL) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) ::signal(signal, disposition);
    _exit(function());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

int get_exit_code(const std::function<int()>& function, void (*disposition)(int) = SIG_DFL) {
  const int status = run_in_child(function, disposition);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void exit_on_stop(int signal) {
  _exit(signal == get_stop_signal() ? kExitedCode : 0);
}

int wait_for_exit() {
  std::this_thread::sleep_for(std::chrono::seconds(60));
  return kTimedOutCode;
}

TEST(StopRequest, StopsAtOnceBeforeTheFirstStep) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) {
    EXPECT_EQ(get_exit_code([signal] {
                install_stop_handlers(exit_on_stop);
                kill(getpid(), signal);
                return wait_for_exit();
              }),
              kExitedCode)
        << signal;
  }
}

TEST(StopRequest, BlockedSignalsAreDeliveredLater) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    EXPECT_EQ(get_exit_code([signal] {
                block_stop_signals();
                kill(getpid(), signal);
                install_stop_handlers(exit_on_stop);
                return wait_for_exit();
              }),
              kExitedCode)
        << signal;
  }
}

TEST(StopRequest, OtherThreadsWaitWhileExiting) {
  EXPECT_EQ(get_exit_code([] {
              install_stop_handlers([](int) {
                std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for example to remove files
                _exit(kExitedCode);
              });
              raise(SIGTERM);
              wait_forever_if_exiting();
              return kContinuedCode;
            }),
            kExitedCode);
}

TEST(StopRequest, RecordsSignalsBetweenSteps) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) {
    EXPECT_EQ(get_exit_code([signal] {
                install_stop_handlers(exit_on_stop);
                enable_graceful_stop();
                raise(signal);
                wait_forever_if_exiting();
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                return get_stop_signal() == signal ? kContinuedCode : 0;
              }),
              kContinuedCode)
        << signal;
  }
}

TEST(StopRequest, NothingHappensWithoutASignal) {
  EXPECT_EQ(get_exit_code([] {
              install_stop_handlers(exit_on_stop);
              wait_forever_if_exiting();
              enable_graceful_stop();
              return get_stop_signal() == 0 ? kContinuedCode : 0;
            }),
            kContinuedCode);
}

/// One interrupt arrives from the terminal, from a launcher, and from the launcher's own launcher.
TEST(StopRequest, RepeatedDeliveriesAreOneInterrupt) {
  EXPECT_EQ(get_exit_code([] {
              install_stop_handlers(exit_on_stop);
              enable_graceful_stop();
              for (int time = 0; time < 3; ++time) raise(SIGINT);
              raise(SIGTERM);
              raise(SIGINT);
              return get_stop_signal() == SIGINT ? kContinuedCode : 0;
            }),
            kContinuedCode);
}

TEST(StopRequest, SecondInterruptKills) {
  const int status = run_in_child([] {
    install_stop_handlers(exit_on_stop);
    enable_graceful_stop();
    raise(SIGINT);
    std::this_thread::sleep_for(std::chrono::duration<double>(kInterruptWindowSeconds + 0.05));
    raise(SIGINT);
    return kContinuedCode;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(StopRequest, IgnoredSignalsStayIgnored) {
  for (const int signal : {SIGINT, SIGHUP, SIGPIPE}) {
    EXPECT_EQ(get_exit_code(
                  [signal] {
                    install_stop_handlers(exit_on_stop);
                    raise(signal);
                    wait_forever_if_exiting();
                    return get_stop_signal() == 0 ? kContinuedCode : 0;
                  },
                  SIG_IGN),
              kContinuedCode)
        << signal;
  }
  for (const int signal : {SIGTERM, SIGUSR1}) {
    EXPECT_EQ(get_exit_code(
                  [signal] {
                    install_stop_handlers(exit_on_stop);
                    raise(signal);
                    return wait_for_exit();
                  },
                  SIG_IGN),
              kExitedCode)
        << signal;
  }
}

}  // namespace

}  // namespace vlmtrain::train
