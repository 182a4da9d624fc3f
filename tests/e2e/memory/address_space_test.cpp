#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPrlimit = "/usr/bin/prlimit";

/// Commands under a limit on address space (ulimit -v), from what the loader needs to what a run
/// needs.
class AddressSpaceTest : public CommandTest, public testing::WithParamInterface<int> {
 protected:
  Result run_with_limit(int kilobytes, const std::vector<std::string>& arguments) const {
    std::vector<std::string> command_line{"--as=" + std::to_string(int64_t{kilobytes} * 1024), VLMTRAIN_BINARY};
    command_line.insert(command_line.end(), arguments.begin(), arguments.end());
    return Process(folder(), command_line, 0, kPrlimit).wait();
  }
};

TEST_P(AddressSpaceTest, ReportsTheLimit) {
  if (!std::filesystem::exists(kPrlimit)) GTEST_SKIP() << "no prlimit";
  // Commands without computations: oneDNN does not handle a lack of memory for its code.
  const std::vector<std::vector<std::string>> commands{
      train_arguments({"training.max_steps=1"}),
      {"init", "--preset", "smolvlm-tiny", "--out", "tiny"},
      {"plan", "--gpu-gb", "24", "--model", "smolvlm-tiny", "--images", "1"},
      {"report", "run"}};
  for (const auto& command : commands) {
    SCOPED_TRACE(command.front());
    const Result result = run_with_limit(GetParam(), command);
    if (result.exit_code == 127) GTEST_SKIP() << "too little for the loader: " << result.err;
    EXPECT_EQ(result.signal, 0) << result.err;
    EXPECT_THAT(result.exit_code, AnyOf(0, 2, 3, 5)) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
    EXPECT_THAT(result.err, Not(HasSubstr("terminate called")));
    EXPECT_THAT(result.err, Not(HasSubstr("setup.sh")));
  }
}

INSTANTIATE_TEST_SUITE_P(Kilobytes, AddressSpaceTest,
                         testing::Values(560'000, 590'000, 610'000, 620'000, 640'000, 700'000));

}  // namespace

}  // namespace vlmtrain::e2e
