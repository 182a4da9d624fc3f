#include "vlmtrain/base/program.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "vlmtrain/base/process.h"

namespace vlmtrain {
namespace {

constexpr double kTimeoutSeconds = 60;

TEST(ProgramTest, IsThatOfTheProcess) {
  EXPECT_TRUE(std::filesystem::equivalent(get_program_path(), "/proc/self/exe"));
  EXPECT_EQ(get_program_folder(), std::filesystem::read_symlink("/proc/self/exe").parent_path());
  EXPECT_FALSE(read_process_arguments().empty());
  EXPECT_TRUE(get_set_program_arguments().empty());
}

/// In a child, since the program cannot be reset.
TEST(ProgramTest, RestartsAsAnotherProgram) {
  const auto result = run_in_subprocess(
      [] {
        set_program("/bin/echo", {"echo", "a word"});
        if (get_program_folder() == "/bin" && read_process_arguments().back() == "a word") restart_program();
      },
      kTimeoutSeconds);
  EXPECT_EQ(result.stdout_text, "a word\n");
  EXPECT_EQ(result.exit_code, 0);
}

}  // namespace
}  // namespace vlmtrain
