#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "e2e/forked_command.h"

namespace vlmtrain::e2e {

/// Folder of a dry run on a virtual RTX 4090, within the folder of its test.
inline constexpr const char* kVirtualRun = "run/virtual-rtx4090/";

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The end of a process: `exit_code` is -1 where `signal` ended it.
struct Result {
  int exit_code = -1;
  int signal = 0;
  std::string out;
  std::string err;
};

/// A running command with one thread; killed with the object unless somebody waits for it.
class Process {
 public:
  /// `file_bytes`: largest size of a file that it may write (ulimit -f); 0: no limit. Without a
  /// `program`, vlmtrain runs in a forked copy of this process where that is possible
  /// (e2e/forked_command.h). Its output is in stdout.txt and stderr.txt of the folder, with
  /// `stream_suffix` before the dot.
  Process(const std::filesystem::path& folder, const std::vector<std::string>& arguments, rlim_t file_bytes = 0,
          const std::string& program = "", const std::string& stream_suffix = "")
      : out_(folder / ("stdout" + stream_suffix + ".txt")), err_(folder / ("stderr" + stream_suffix + ".txt")) {
    const bool is_forked = program.empty() && can_fork_commands();
    std::vector<std::string> command_line{program.empty() ? VLMTRAIN_BINARY : program};
    command_line.insert(command_line.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& argument : command_line) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::fflush(nullptr);  // the child would print a copy of buffered output again
    id_ = fork();
    if (id_ == 0) {
      const bool ready = chdir(folder.c_str()) == 0 && redirect(out_, STDOUT_FILENO) && redirect(err_, STDERR_FILENO);
      const rlimit limit{file_bytes, file_bytes};
      if (!ready || (file_bytes > 0 && setrlimit(RLIMIT_FSIZE, &limit) != 0)) _exit(126);
      if (is_forked) run_forked_command(arguments);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (id_ > 0) {
      send(SIGKILL);
      wait();
    }
  }

  pid_t id() const { return id_; }
  void send(int signal) const { kill(id_, signal); }

  bool is_running() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }

  Result wait() {
    int status = 0;
    waitpid(std::exchange(id_, -1), &status, 0);
    Result result{.out = read_text(out_), .err = read_text(err_)};
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    return result;
  }

 private:
  static bool redirect(const std::filesystem::path& path, int descriptor) {
    return dup2(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), descriptor) >= 0;
  }

  std::filesystem::path out_;
  std::filesystem::path err_;
  pid_t id_ = -1;
};

/// Copies the program and vlmtrain-core into another folder.
inline void copy_program(const std::filesystem::path& folder) {
  const std::filesystem::path program = VLMTRAIN_BINARY;
  for (const char* const name : {"vlmtrain", "vlmtrain-core"}) {
    std::filesystem::copy(program.parent_path() / name, folder / name);
  }
  // Without custom kernels plans would differ.
  constexpr const char* kKernels = "libvlmtrain_kernels.so";
  if (std::filesystem::exists(program.parent_path() / kKernels)) {
    std::filesystem::copy(program.parent_path() / kKernels, folder / kKernels);
  }
}

/// A new folder in which the command runs, with a small model and its data. The records are those
/// of the parity case mixed_batch, with different lengths, images and label tokens, repeated under
/// new ids.
class CommandTest : public testing::Test {
 protected:
  static constexpr int kRecords = 11;

  void SetUp() override {
    setenv("VLMTRAIN_PAST_RUNS", "off", 1);
    std::string pattern = (std::filesystem::temp_directory_path() / "vlmtrain_e2e_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::filesystem::copy(source() / "images", folder_ / "images");
    write_records(records());
    write_text(folder_ / "train.yaml", "model:\n  path: " + checkpoint().string() +
                                           "\n"
                                           "data:\n  train: train.json\n  eval: train.json\n  image_root: images\n"
                                           "training:\n  global_batch_size: 4\n  max_steps: 4\n"
                                           "  learning_rate: 1.0e-3\n  precision: fp32\n"
                                           "output:\n  dir: run\n  log_samples: true\n");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::filesystem::path source() {
    return std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/mixed_batch";
  }
  static std::filesystem::path checkpoint() { return source() / "checkpoint"; }
  const std::filesystem::path& folder() const { return folder_; }

  static nlohmann::json records() {
    const auto samples = nlohmann::json::parse(read_text(source() / "conversations.json"));
    auto all = nlohmann::json::array();
    for (size_t i = 0; i < kRecords; ++i) {
      all.push_back(samples[i % samples.size()]);
      all.back()["id"] = "sample-" + std::to_string(i);
    }
    return all;
  }
  void write_records(const nlohmann::json& records) const { write_text(folder_ / "train.json", records.dump(1)); }

  Result run(const std::vector<std::string>& arguments, rlim_t file_bytes = 0) const {
    return Process(folder_, arguments, file_bytes).wait();
  }

  static std::vector<std::string> train_arguments(const std::vector<std::string>& overrides) {
    std::vector<std::string> arguments{"--config", "train.yaml", "--device", "cpu"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return arguments;
  }
  Result train(const std::vector<std::string>& overrides) const { return run(train_arguments(overrides)); }

  /// Runs a training that must succeed.
  void train_well(const std::vector<std::string>& overrides) const {
    const Result result = train(overrides);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  /// Returns the lines of metrics.jsonl or samples.jsonl.
  std::vector<nlohmann::ordered_json> step_lines(const std::string& file) const {
    std::vector<nlohmann::ordered_json> steps;
    for (const auto& line : split_lines(read_text(folder_ / file)))
      steps.push_back(nlohmann::ordered_json::parse(line));
    return steps;
  }
  nlohmann::ordered_json json_file(const std::string& file) const {
    return nlohmann::ordered_json::parse(read_text(folder_ / file));
  }

  static std::vector<std::string> entries(const std::filesystem::path& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  /// Waits until `happened` returns true or the process ends.
  static void wait_until(const Process& process, const std::function<bool()>& happened) {
    while (process.is_running() && !happened()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace vlmtrain::e2e
