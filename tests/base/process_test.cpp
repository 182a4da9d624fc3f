#include "vlmtrain/base/process.h"

#include <stdlib.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

namespace vlmtrain {
namespace {

constexpr double kLongTimeoutSeconds = 60;

TEST(SubprocessTest, ReturnsTheOutput) {
  const auto result = run_in_subprocess([] { std::printf("so it is\n"); }, kLongTimeoutSeconds);
  EXPECT_TRUE(result.succeeded());
  EXPECT_EQ(result.stdout_text, "so it is\n");
}

TEST(SubprocessTest, ReturnsOutputLargerThanAPipe) {
  const std::string text(1'000'000, 'x');
  EXPECT_EQ(run_in_subprocess([&] { std::fputs(text.c_str(), stdout); }, kLongTimeoutSeconds).stdout_text, text);
}

TEST(SubprocessTest, DoesNotAffectTheParent) {
  int number = 1;
  run_in_subprocess(
      [&] {
        number = 2;
        setenv("VLMTRAIN_SUBPROCESS_TEST", "set", 1);
      },
      kLongTimeoutSeconds);
  EXPECT_EQ(number, 1);
  EXPECT_EQ(getenv("VLMTRAIN_SUBPROCESS_TEST"), nullptr);
}

TEST(SubprocessTest, ReportsACrash) {
  const auto result = run_in_subprocess([] { std::raise(SIGILL); }, kLongTimeoutSeconds);
  EXPECT_FALSE(result.succeeded());
  EXPECT_EQ(result.termination_signal, SIGILL);
  EXPECT_THAT(result.describe_exit(), testing::HasSubstr("signal 4 (Illegal instruction)"));
}

TEST(SubprocessTest, ReportsAnExitCode) {
  const auto result = run_in_subprocess([] { _exit(3); }, kLongTimeoutSeconds);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(result.succeeded());
  EXPECT_THAT(result.describe_exit(), testing::HasSubstr("exited with code 3"));
}

TEST(SubprocessTest, KillsAfterTheTimeout) {
  const auto start = std::chrono::steady_clock::now();
  const auto result = run_in_subprocess(
      [] {
        std::printf("begun\n");
        std::fflush(stdout);
        for (;;) pause();
      },
      /*timeout_seconds=*/1);
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.succeeded());
  EXPECT_EQ(result.stdout_text, "begun\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(ProgramTest, IsThatOfTheProcess) {
  EXPECT_TRUE(std::filesystem::equivalent(get_program_path(), "/proc/self/exe"));
  EXPECT_EQ(get_program_folder(), std::filesystem::read_symlink("/proc/self/exe").parent_path());
  ASSERT_FALSE(read_process_arguments().empty());
  EXPECT_TRUE(read_process_arguments().front().ends_with("base_tests")) << "no test has called set_program()";
}

/// In a child, since the program cannot be reset.
TEST(ProgramTest, RestartsAsAnotherProgram) {
  const auto result = run_in_subprocess(
      [] {
        set_program("/bin/echo", {"echo", "a word"});
        if (get_program_folder() == "/bin" && read_process_arguments().back() == "a word") restart_program();
      },
      kLongTimeoutSeconds);
  EXPECT_EQ(result.stdout_text, "a word\n");
  EXPECT_EQ(result.exit_code, 0);
}

}  // namespace
}  // namespace vlmtrain
