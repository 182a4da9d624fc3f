#include "planner/parent_watch.h"

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

#include "vlmtrain/memory/host.h"

namespace vlmtrain::planner {
namespace {

using testing::HasSubstr;

constexpr int64_t kNoLimit = int64_t{1} << 50;
constexpr int kLate = 11;

struct Ending {
  int status = 0;
  std::string out;
};

/// A process as the planner starts it, its stdin held open by this one unless `without_requests`.
class Child {
 public:
  explicit Child(const std::function<int()>& what) {
    EXPECT_EQ(pipe(requests_.data()) + pipe(answers_.data()), 0);
    id_ = fork();
    if (id_ == 0) {
      dup2(requests_[0], STDIN_FILENO);
      dup2(answers_[1], STDOUT_FILENO);
      for (const int end : {requests_[0], requests_[1], answers_[0], answers_[1]}) close(end);
      _exit(what());
    }
    close(requests_[0]);
    close(answers_[1]);
  }

  void close_requests() { close(requests_[1]); }

  Ending wait() const {
    Ending ending;
    std::array<char, 1024> piece{};
    for (ssize_t bytes = 0; (bytes = read(answers_[0], piece.data(), piece.size())) > 0;) {
      ending.out.append(piece.data(), static_cast<size_t>(bytes));
    }
    waitpid(id_, &ending.status, 0);
    return ending;
  }

 private:
  std::array<int, 2> requests_{};
  std::array<int, 2> answers_{};
  pid_t id_ = -1;
};

int be_busy() {
  std::this_thread::sleep_for(std::chrono::seconds(60));
  return kLate;
}

TEST(ParentWatch, TheEndOfTheRequestsEndsABusyChild) {
  Child child([] {
    watch_parent({.parent = 0, .most_host_bytes = kNoLimit});
    return be_busy();
  });
  child.close_requests();
  const Ending ending = child.wait();
  ASSERT_TRUE(WIFEXITED(ending.status));
  EXPECT_EQ(WEXITSTATUS(ending.status), 0);
}

TEST(ParentWatch, AChildWhoseParentDiedBeforeItStartedEnds) {
  Child child([] {
    watch_parent({.parent = getppid() + 1, .most_host_bytes = kNoLimit});
    return be_busy();
  });
  const Ending ending = child.wait();
  ASSERT_TRUE(WIFEXITED(ending.status));
  EXPECT_EQ(WEXITSTATUS(ending.status), 5);
}

TEST(ParentWatch, AKilledParentTakesTheChildWithIt) {
  // The grandchild holds the answers' pipe, whose end is seen when it has gone; its own stdin stays open.
  Child child([] {
    const pid_t parent = getpid();
    std::array<int, 2> watched{};
    if (pipe(watched.data()) != 0) return 1;
    if (fork() == 0) {
      watch_parent({.parent = parent, .most_host_bytes = kNoLimit});
      _exit(write(STDOUT_FILENO, "x", 1) + write(watched[1], "x", 1) == 2 ? be_busy() : 1);
    }
    char byte = 0;
    if (read(watched[0], &byte, 1) == 1) raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(child.wait().out, "x");
}

TEST(ParentWatch, MoreMemoryThanItMayTakeIsTheLastAnswer) {
  constexpr int64_t kMore = int64_t{256} << 20;
  Child child([] {
    watch_parent({.parent = 0, .most_host_bytes = memory::host_bytes() + kMore / 2});
    const std::vector<char> touched(kMore, 'x');
    return be_busy() + touched[0];
  });
  const Ending ending = child.wait();
  ASSERT_TRUE(WIFEXITED(ending.status));
  EXPECT_EQ(WEXITSTATUS(ending.status), 5);
  const auto answer = nlohmann::json::parse(ending.out);
  EXPECT_EQ(answer["error"]["code"], 5);
  EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr("of this machine's memory"));
}

}  // namespace
}  // namespace vlmtrain::planner
