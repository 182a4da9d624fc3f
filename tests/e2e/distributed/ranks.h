#pragma once

#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "distributed/thread_ranks.h"
#include "e2e/command.h"

namespace vlmtrain::e2e {

/// Runs of several processes on the CPU, compared with one.
class RanksTest : public CommandTest {
 protected:
  using Settings = std::vector<std::string>;

  static constexpr int kSteps = 6;

  static Settings settings(const std::string& dir, const Settings& more = {}) {
    Settings all{"output.dir=" + dir, "training.global_batch_size=12", "training.max_steps=" + std::to_string(kSteps),
                 "output.sample_predictions=0", "output.report=false"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Runs the ranks by vlmtrain's launcher.
  Result train_on_ranks(int ranks, const Settings& overrides) const {
    auto arguments = train_arguments(overrides);
    arguments.insert(arguments.end(), {"--nproc-per-node", std::to_string(ranks)});
    return run(arguments);
  }

  /// An error of all ranks is printed once.
  static int count_errors(const Result& result) {
    constexpr std::string_view kError = "vlmtrain: error: ";
    int count = 0;
    for (size_t at = result.err.find(kError); at != std::string::npos; at = result.err.find(kError, at + 1)) ++count;
    return count;
  }

  /// Runs the ranks without a launcher, which would load LibTorch once per rank.
  void expect_training_on_ranks(int ranks, const Settings& overrides) const {
    const int64_t port = distributed::free_port();
    std::vector<std::unique_ptr<Process>> processes;
    for (int rank = 0; rank < ranks; ++rank) processes.push_back(start_rank(rank, port, overrides, ranks));
    for (const auto& process : processes) {
      const Result result = process->wait();
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("prefetching is limited"))) << "there is room for them";
      EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("planning failed")));
    }
  }

  /// Compares losses, norms, samples and counts of one process with those of several.
  void expect_same_steps(const std::string& single, const std::string& several, double tolerance) const {
    const auto expected = step_lines(single + "/metrics.jsonl"), actual = step_lines(several + "/metrics.jsonl");
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      for (const char* key : {"step", "epoch", "tokens", "label_tokens", "images", "samples", "skipped"}) {
        EXPECT_EQ(actual[i][key], expected[i][key]) << key << " of step " << i + 1;
      }
      // Norms of one process with another split differ as much (docs/benchmarks/ranks.md).
      for (const auto& [key, rounding] : {std::pair{"loss", tolerance}, {"grad_norm", 5 * tolerance}}) {
        const double value = expected[i][key];
        EXPECT_NEAR(actual[i][key].get<double>(), value, rounding * std::abs(value)) << key << " of step " << i + 1;
      }
    }
    const auto expected_samples = step_lines(single + "/samples.jsonl"),
               actual_samples = step_lines(several + "/samples.jsonl");
    ASSERT_EQ(actual_samples.size(), expected_samples.size());
    for (size_t i = 0; i < expected_samples.size(); ++i) {
      auto ids = expected_samples[i]["ids"].get<std::multiset<std::string>>();
      EXPECT_EQ(actual_samples[i]["ids"].get<std::multiset<std::string>>(), ids) << "step " << i + 1;
    }
    EXPECT_EQ(json_file(several + "/ledger.json"), json_file(single + "/ledger.json"));
  }

  /// Starts a rank without the launcher.
  std::unique_ptr<Process> start_rank(int rank, int64_t port, const Settings& overrides, int world_size = 2) const {
    setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    auto process = std::make_unique<Process>(folder(), train_arguments(overrides), 0, "", "-" + std::to_string(rank));
    for (const char* name : {"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
    return process;
  }

  /// Starts two ranks of a long run in the folder run, and returns after some steps.
  std::pair<std::unique_ptr<Process>, std::unique_ptr<Process>> start_two_that_train() const {
    const int64_t port = distributed::free_port();
    const auto endless = settings("run", {"training.max_steps=100000"});
    auto first = start_rank(0, port, endless), second = start_rank(1, port, endless);
    wait_until(*first, [&] {
      return std::filesystem::exists(folder() / "run/metrics.jsonl") && step_lines("run/metrics.jsonl").size() > 3;
    });
    return {std::move(first), std::move(second)};
  }
};

}  // namespace vlmtrain::e2e
