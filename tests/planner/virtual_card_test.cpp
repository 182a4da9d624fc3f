#include "vlmtrain/planner/virtual_card.h"

#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "planner/user_error.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// What `ulimit -v` sets, for as long as it lives: 4 GB above what the process has.
class FewAddresses {
 public:
  FewAddresses() {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit few = before_;
    few.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 4'000'000'000;
    setrlimit(RLIMIT_AS, &few);
  }
  ~FewAddresses() { setrlimit(RLIMIT_AS, &before_); }
  FewAddresses(const FewAddresses&) = delete;
  FewAddresses& operator=(const FewAddresses&) = delete;

 private:
  rlimit before_{};
};

TEST(RequireAddresses, AreThereWithoutALimit) {
  EXPECT_NO_THROW(require_addresses());
}

TEST(RequireAddresses, NamesTheLimitThatLeavesTooFew) {
  const FewAddresses few;
  const auto names_limit = AllOf(HasSubstr("address space"), HasSubstr("ulimit -v unlimited"));
  EXPECT_THAT(message_of([] { require_addresses(); }, ExitCode::kFailed), names_limit);
  // Before any process is started.
  EXPECT_THAT(
      message_of([] { RehearsalProcess({}, {.gpu = "h100", .memory_bytes = std::nullopt}); }, ExitCode::kFailed),
      names_limit);
  EXPECT_THAT(message_of([] { restart_on({.gpu = "h100", .memory_bytes = std::nullopt}); }, ExitCode::kFailed),
              names_limit);
}

}  // namespace
}  // namespace vlmtrain::planner
