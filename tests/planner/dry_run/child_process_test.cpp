#include "planner/dry_run/child_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::planner {
namespace {

using testing::HasSubstr;

constexpr int64_t kNoLimit = int64_t{1} << 50;
constexpr int kTimeoutCode = 11;

struct ProcessResult {
  int status = 0;
  std::string output;
};

/// A process as the planner spawns it. This process holds its stdin open, unless
/// `without_requests`.
class ChildProcessFixture {
 public:
  explicit ChildProcessFixture(const std::function<int()>& body) {
    EXPECT_EQ(pipe(requests_.data()) + pipe(answers_.data()), 0);
    id_ = fork();
    if (id_ == 0) {
      dup2(requests_[0], STDIN_FILENO);
      dup2(answers_[1], STDOUT_FILENO);
      for (const int end : {requests_[0], requests_[1], answers_[0], answers_[1]}) close(end);
      _exit(body());
    }
    close(requests_[0]);
    close(answers_[1]);
  }

  void close_requests() { close(requests_[1]); }

  ProcessResult wait() const {
    ProcessResult result;
    std::array<char, 1024> buffer{};
    for (ssize_t bytes = 0; (bytes = read(answers_[0], buffer.data(), buffer.size())) > 0;) {
      result.output.append(buffer.data(), static_cast<size_t>(bytes));
    }
    waitpid(id_, &result.status, 0);
    return result;
  }

 private:
  std::array<int, 2> requests_{};
  std::array<int, 2> answers_{};
  pid_t id_ = -1;
};

int sleep_for_a_minute() {
  std::this_thread::sleep_for(std::chrono::seconds(60));
  return kTimeoutCode;
}

TEST(ParentWatch, ClosedRequestsEndABusyChild) {
  ChildProcessFixture child([] {
    watch_parent({.parent_pid = 0, .max_host_bytes = kNoLimit});
    return sleep_for_a_minute();
  });
  child.close_requests();
  const ProcessResult result = child.wait();
  ASSERT_TRUE(WIFEXITED(result.status));
  EXPECT_EQ(WEXITSTATUS(result.status), 0);
}

TEST(ParentWatch, AnOrphanEndsAtStart) {
  ChildProcessFixture child([] {
    watch_parent({.parent_pid = getppid() + 1, .max_host_bytes = kNoLimit});
    return sleep_for_a_minute();
  });
  const ProcessResult result = child.wait();
  ASSERT_TRUE(WIFEXITED(result.status));
  EXPECT_EQ(WEXITSTATUS(result.status), 5);
}

TEST(ParentWatch, AKilledParentEndsTheChild) {
  // The grandchild holds the write end of the pipe, so that the pipe ends with it. Its own stdin
  // stays open.
  ChildProcessFixture child([] {
    const pid_t parent = getpid();
    std::array<int, 2> pipe_ends{};
    if (pipe(pipe_ends.data()) != 0) return 1;
    if (fork() == 0) {
      watch_parent({.parent_pid = parent, .max_host_bytes = kNoLimit});
      _exit(write(STDOUT_FILENO, "x", 1) + write(pipe_ends[1], "x", 1) == 2 ? sleep_for_a_minute() : 1);
    }
    char byte = 0;
    if (read(pipe_ends[0], &byte, 1) == 1) raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(child.wait().output, "x");
}

TEST(ParentWatch, ExceedingTheMemoryLimitIsReported) {
  constexpr int64_t kExtraBytes = int64_t{256} << 20;
  ChildProcessFixture child([] {
    watch_parent({.parent_pid = 0, .max_host_bytes = memory::get_resident_bytes() + kExtraBytes / 2});
    const std::vector<char> touched(kExtraBytes, 'x');
    return sleep_for_a_minute() + touched[0];
  });
  const ProcessResult result = child.wait();
  ASSERT_TRUE(WIFEXITED(result.status));
  EXPECT_EQ(WEXITSTATUS(result.status), 5);
  const auto answer = nlohmann::json::parse(result.output);
  EXPECT_EQ(answer["error"]["code"], 5);
  EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr("of host memory"));
}

}  // namespace
}  // namespace vlmtrain::planner
