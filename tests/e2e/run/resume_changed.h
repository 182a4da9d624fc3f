#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "e2e/command.h"

namespace vlmtrain::e2e {

/// Runs that continue with other settings, by training.resume: changed.
class ResumeChangedTest : public CommandTest {
 protected:
  using Settings = std::vector<std::string>;

  static Settings settings(const std::string& dir, int steps, const Settings& more = {}) {
    Settings all{"output.dir=" + dir, "training.max_steps=" + std::to_string(steps), "output.save_steps=4",
                 "output.save_total_limit=9", "output.sample_predictions=0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static Settings changed(Settings all) {
    all.emplace_back("training.resume=changed");
    return all;
  }

  void copy_run(const std::string& source, const std::string& target) const {
    std::filesystem::copy(folder() / source, folder() / target, std::filesystem::copy_options::recursive);
  }

  std::filesystem::path get_checkpoint_folder(const std::string& dir, int step) const {
    return folder() / dir / "checkpoints" / ("step-" + std::to_string(step));
  }

  void remove_later_checkpoints(const std::string& dir, int step) const {
    for (const auto& name : entries(folder() / dir / "checkpoints")) {
      if (std::stoi(name.substr(5)) > step) std::filesystem::remove_all(folder() / dir / "checkpoints" / name);
    }
  }

  std::vector<double> rates(const std::string& dir) const {
    std::vector<double> values;
    for (const auto& step : step_lines(dir + "/metrics.jsonl")) values.push_back(step["learning_rate"]);
    return values;
  }

  std::vector<std::string> messages(const std::string& dir, const std::string& kind) const {
    std::vector<std::string> texts;
    for (const auto& event : step_lines(dir + "/events.jsonl")) {
      if (event["kind"] == kind) texts.push_back(event["message"]);
    }
    return texts;
  }

  void expect_same(const std::string& uninterrupted, const std::string& resumed, int step) const {
    const auto expected = step_lines(uninterrupted + "/metrics.jsonl"), actual = step_lines(resumed + "/metrics.jsonl");
    ASSERT_EQ(expected.size(), static_cast<size_t>(step));
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      for (const char* key : {"step", "total_steps", "epoch", "loss", "learning_rate", "grad_norm", "samples"}) {
        EXPECT_EQ(expected[i][key].dump(), actual[i][key].dump()) << key << " of step " << i + 1;
      }
    }
    std::vector<std::string> files{"trainer_state/optimizer.safetensors"};
    for (const char* const name : {"model.safetensors", "adapter_model.safetensors"}) {
      if (std::filesystem::exists(get_checkpoint_folder(uninterrupted, step) / name)) files.emplace_back(name);
    }
    EXPECT_EQ(files.size(), 2U);
    for (const auto& file : files) {
      EXPECT_EQ(read_text(get_checkpoint_folder(uninterrupted, step) / file),
                read_text(get_checkpoint_folder(resumed, step) / file))
          << file;
    }
    for (const char* const file : {"samples.jsonl", "ledger.json"}) {
      EXPECT_EQ(read_text(folder() / uninterrupted / file), read_text(folder() / resumed / file)) << file;
    }
  }

  std::string refused(int exit_code, const Settings& overrides) const {
    const Result result = train(overrides);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return result.err;
  }

  /// Writes fewer records under other names.
  void write_other_records(const std::string& file, size_t count) const {
    auto some = nlohmann::json::array();
    for (size_t i = 0; i < count; ++i) {
      some.push_back(records()[i]);
      some.back()["id"] = "other-" + std::to_string(i);
    }
    write_text(folder() / file, some.dump());
  }
};

}  // namespace vlmtrain::e2e
