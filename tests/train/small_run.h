#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/train/trainer.h"

namespace vlmtrain::train {

/// A run of a few steps on the CPU in this process: each step uses all four samples.
class SmallRunTest : public testing::Test {
 protected:
  static constexpr int64_t kSteps = 3;

  SmallRunTest() {
    const parity::Case source("mixed_batch");
    config_.model.path = source.checkpoint();
    const std::filesystem::path data = source.checkpoint().parent_path();
    config_.data.train = data / "conversations.json";
    config_.data.image_root = data / "images";
    config_.data.num_workers = 1;
    config_.training.global_batch_size = std::ssize(source.records());
    config_.training.micro_batch_size = config_.training.global_batch_size;
    config_.training.max_steps = kSteps;
    config_.training.precision = engine::Precision::kFp32;
    config_.output.dir = folder_.path() / "run";
    config_.output.save_steps = 0;
    config_.output.num_sample_predictions = 0;
  }

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path run_folder() const { return config_.output.dir; }

  TrainingSummary run_training() const { return train(config_, "", at::kCPU, /*quiet=*/true); }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    const auto checkpoints = run_folder() / "checkpoints";
    if (!std::filesystem::exists(checkpoints)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) names.push_back(entry.path().filename());
    return names;
  }

  static std::string read_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  /// Returns the lines of a file of the run.
  std::vector<nlohmann::json> read_json_lines(const std::string& name) const {
    std::ifstream file(run_folder() / name);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  Config config_;

 private:
  const parity::TemporaryFolder folder_;
};

}  // namespace vlmtrain::train
