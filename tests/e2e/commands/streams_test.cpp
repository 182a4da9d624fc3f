#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Destinations of the output, and sources of the configuration.
class StreamsTest : public CommandTest {
 protected:
  /// Runs a line of the shell in which $V is vlmtrain. OpenMP has a user's settings, so that
  /// `train` executes itself again.
  Result shell(const std::string& line) const {
    setenv("V", VLMTRAIN_BINARY, 1);
    setenv("CHECKPOINT", checkpoint().c_str(), 1);
    return Process(folder(), {"-c", "unset OMP_WAIT_POLICY; " + line}, 0, "/bin/sh").wait();
  }

  static constexpr const char* kShort =
      " --device cpu training.max_steps=1 output.report=false output.tensorboard=false output.sample_predictions=0";
};

TEST_F(StreamsTest, ReportsAFullDiskForStdout) {
  const std::string short_run = std::string("$V --config train.yaml") + kShort;
  for (const std::string& command :
       {std::string("$V options"), std::string("$V options --markdown"), std::string("$V --help"),
        std::string("$V --version"), std::string("$V plan --help"), short_run + " --json",
        std::string("$V eval --config train.yaml --checkpoint $CHECKPOINT --device cpu --max-new-tokens 1"),
        std::string("$V eval --config train.yaml --checkpoint $CHECKPOINT --device cpu --max-new-tokens 1 --json"),
        std::string("$V generate --checkpoint $CHECKPOINT --prompt hello --device cpu --max-new-tokens 1"),
        std::string("$V generate --checkpoint $CHECKPOINT --prompt hello --device cpu --max-new-tokens 1 --json"),
        std::string("$V plan --gpu rtx4090 --config train.yaml"),
        std::string("$V plan --gpu rtx4090 --config train.yaml --json")}) {
    const Result result = shell(command + " > /dev/full");
    EXPECT_EQ(result.exit_code, 5) << command << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr("cannot write to stdout: No space left on device")) << command;
    EXPECT_THAT(result.err, Not(HasSubstr("internal error"))) << command;
  }
  EXPECT_TRUE(std::filesystem::exists(folder() / "run/checkpoints/step-1")) << "the run itself succeeds";
}

TEST_F(StreamsTest, ReportsAClosedStdout) {
  const Result result = shell("$V options >&-");
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("cannot write to stdout: Bad file descriptor"));
}

TEST_F(StreamsTest, ReopensClosedStreams) {
  const Result closed = shell(std::string("exec $V --config train.yaml") + kShort + " <&- >&- 2>&-");
  EXPECT_EQ(closed.exit_code, 0);
  ASSERT_EQ(shell(std::string("exec $V --config train.yaml output.dir=open") + kShort).exit_code, 0);
  for (const char* file : {"checkpoints/step-1/model.safetensors", "ledger.json", "samples.jsonl"}) {
    EXPECT_EQ(read_text(folder() / "run" / file), read_text(folder() / "open" / file)) << file;
  }
}

TEST_F(StreamsTest, EndsBySigpipe) {
  // `true` has ended before something is printed.
  shell("{ sleep 1; $V options; echo $? > status; } | true");
  EXPECT_EQ(read_text(folder() / "status"), "141\n");
  const Result ignored = shell("trap '' PIPE; { sleep 1; $V options; echo $? > status; } | true");
  EXPECT_EQ(read_text(folder() / "status"), "5\n");
  EXPECT_THAT(ignored.err, HasSubstr("cannot write to stdout: Broken pipe"));
}

TEST_F(StreamsTest, UnreadLogStopsTheRun) {
  shell(std::string("{ sleep 1; $V --config train.yaml") + kShort + "; echo $? > status; } 2>&1 | true");
  EXPECT_EQ(read_text(folder() / "status"), "75\n");
  EXPECT_FALSE(std::filesystem::exists(folder() / "run/checkpoints"));
}

TEST_F(StreamsTest, ReadsAConfigurationFromAPipe) {
  ASSERT_EQ(shell(std::string("$V --config train.yaml") + kShort).exit_code, 0);
  std::filesystem::rename(folder() / "run", folder() / "file");
  for (const char* from : {"cat train.yaml | $V --config /dev/stdin", "$V --config /dev/stdin < train.yaml",
                           "cat train.yaml | { exec 3<&0; $V --config /dev/fd/3 < /dev/null; }"}) {
    const bool braced = std::string_view(from).ends_with("}");
    std::string line = from;
    line.insert(braced ? line.find(" < /dev/null") : line.size(), kShort);
    const Result result = shell(line);
    ASSERT_EQ(result.exit_code, 0) << line << "\n" << result.err;
    EXPECT_EQ(read_text(folder() / "run/config.yaml"), read_text(folder() / "file/config.yaml")) << line;
    EXPECT_EQ(read_text(folder() / "run/checkpoints/step-1/model.safetensors"),
              read_text(folder() / "file/checkpoints/step-1/model.safetensors"));
    std::filesystem::remove_all(folder() / "run");
  }
}

TEST_F(StreamsTest, AllCommandsReadAConfigurationFromAPipe) {
  const Result eval = shell(
      "cat train.yaml | $V eval --config /dev/stdin --checkpoint $CHECKPOINT --device cpu --max-new-tokens 1 --json");
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
  const Result plan = shell("cat train.yaml | $V plan --config /dev/stdin --gpu rtx4090 --json");
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  const Result dry_run_result = shell(
      "cat train.yaml | $V --config /dev/stdin --device virtual:rtx4090 training.max_steps=1 output.report=false");
  EXPECT_EQ(dry_run_result.exit_code, 0) << dry_run_result.err;
}

TEST_F(StreamsTest, RejectsANamedPipeAsConfiguration) {
  const Result result = shell("mkfifo pipe; $V --config pipe --device cpu");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("pipe: is a named pipe; give an existing file to --config, or /dev/stdin"));
  EXPECT_THAT(result.out, IsEmpty());
}

}  // namespace

}  // namespace vlmtrain::e2e
