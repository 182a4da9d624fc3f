#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

/// Answers that the program gives before it executes vlmtrain-core, which needs LibTorch.
class WithoutLibTorchTest : public CommandTest {
 protected:
  struct Answer {
    Result result;
    std::string loader_output;  ///< messages of the loader about the libraries that it opened
  };

  Answer ask(const std::vector<std::string>& arguments) const {
    std::filesystem::remove_all(folder() / "loader");
    std::filesystem::create_directory(folder() / "loader");
    std::vector<std::string> command_line{"LD_DEBUG=files", "LD_DEBUG_OUTPUT=" + (folder() / "loader/said").string(),
                                          VLMTRAIN_BINARY};
    command_line.insert(command_line.end(), arguments.begin(), arguments.end());
    Answer answer{.result = Process(folder(), command_line, 0, "/usr/bin/env").wait(), .loader_output = {}};
    for (const auto& file : std::filesystem::directory_iterator(folder() / "loader")) {
      answer.loader_output += read_text(file.path());
    }
    return answer;
  }

  void expect_answer(const std::vector<std::string>& arguments, int exit_code, const std::string& expected_text) const {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const Answer answer = ask(arguments);
    EXPECT_EQ(answer.result.exit_code, exit_code) << answer.result.err;
    EXPECT_THAT(exit_code == 0 ? answer.result.out : answer.result.err, HasSubstr(expected_text));
    EXPECT_THAT(answer.loader_output,
                AllOf(HasSubstr("libc.so"), Not(HasSubstr("libtorch")), Not(HasSubstr("libc10"))));
  }
};

TEST_F(WithoutLibTorchTest, PrintsHelpVersionAndOptions) {
  expect_answer({"--help"}, 0, "that a run needs on a GPU");
  expect_answer({"--version"}, 0, ".");
  for (const char* const command :
       {"train", "plan", "inspect", "doctor", "init", "eval", "generate", "merge", "options", "report", "dry-run"}) {
    expect_answer({command, "--help"}, 0, std::string("vlmtrain ") + command);
  }
  expect_answer({"options"}, 0, "max_steps: ");
  expect_answer({"options", "--markdown"}, 0, "| `training.max_steps` |");
}

TEST_F(WithoutLibTorchTest, ReportsWrongArguments) {
  expect_answer({}, 2, "a command is missing");
  expect_answer({"trian"}, 2, "did you mean train?");
  expect_answer({"--config", "train.yaml", "--max-steps", "3"}, 2, "training.max_steps=3");
  expect_answer({"init", "--preset", "smolvlm-tiny"}, 2, "--out is required");
  expect_answer({"generate", "--checkpoint", "x", "--image", "nowhere.png"}, 2, "nowhere.png");
}

TEST_F(WithoutLibTorchTest, ReportsWrongConfigurations) {
  const std::string key = "training.max_stepz=1";
  const std::string suggestion = "did you mean training.max_steps?";
  expect_answer({"--config", "train.yaml", key}, 2, suggestion);
  expect_answer({"inspect", "--config", "train.yaml", key}, 2, suggestion);
  expect_answer({"eval", "--config", "train.yaml", "--checkpoint", "x", key}, 2, suggestion);
  expect_answer({"plan", "--gpu-gb", "24", key}, 2, suggestion);
  expect_answer({"plan", "--gpu-gb", "24", "--precision", "fp17"}, 2, "training.precision");
  expect_answer({"--config", "nowhere.yaml"}, 2, "nowhere.yaml: cannot be read");
  write_text(folder() / "wrong.yaml", "model:\n  path: 1\ntrainign:\n  epochs: 1\n");
  expect_answer({"--config", "wrong.yaml"}, 2, "wrong.yaml:");
}

/// Shows that the tests above would notice LibTorch.
TEST_F(WithoutLibTorchTest, CommandsLoadLibTorch) {
  const Answer answer = ask({"report", "nowhere"});
  EXPECT_NE(answer.result.exit_code, 0);
  EXPECT_THAT(answer.loader_output, AllOf(HasSubstr("libtorch_cpu.so"), HasSubstr("libc10.so")));
}

TEST_F(WithoutLibTorchTest, ReportsAMissingCoreProgram) {
  std::filesystem::create_directory(folder() / "elsewhere");
  const auto program = folder() / "elsewhere/vlmtrain";
  std::filesystem::copy(VLMTRAIN_BINARY, program);
  EXPECT_EQ(Process(folder(), {"--version"}, 0, program).wait().exit_code, 0);
  const Result result = Process(folder(), {"report", "run"}, 0, program).wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err,
              AllOf(StartsWith("vlmtrain: error: "), HasSubstr("elsewhere/vlmtrain-core: cannot be started"),
                    HasSubstr("No such file or directory"), HasSubstr("copy it there")));
}

}  // namespace

}  // namespace vlmtrain::e2e
