#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <fstream>

#include "planner/user_error.h"
#include "train/small_run.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using planner::get_usage_error;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kChecksumsFile = "trainer_state/checksums.json";

/// Runs with one of three steps done, each with a checkpoint.
class DamagedCheckpointTest : public SmallRunTest {
 protected:
  DamagedCheckpointTest() {
    config_.output.save_steps = 1;
    config_.output.save_total_limit = kSteps;
  }

  void train_two_steps() {
    run_training();
    fs::remove_all(checkpoint(3));
  }

  fs::path checkpoint(int64_t step) const { return run_folder() / "checkpoints" / fmt::format("step-{}", step); }

  static void flip_bit(const fs::path& file, double position) {
    std::string bytes = read_text(file);
    auto& byte = bytes.at(static_cast<size_t>(position * static_cast<double>(bytes.size() - 1)));
    byte = static_cast<char>(byte ^ 0x40);
    std::ofstream(file, std::ios::binary) << bytes;
  }

  static void truncate_file(const fs::path& file) { fs::resize_file(file, 10); }

  /// Returns why the run does not resume after `damage` to a file of its newest checkpoint, and
  /// repairs the file.
  template <class Damage>
  std::string get_refusal(const std::string& name, const Damage& damage) const {
    const fs::path file = checkpoint(2) / name, backup = folder() / "whole";
    fs::copy(file, backup, fs::copy_options::overwrite_existing);
    damage(file);
    std::string text = get_usage_error([this] { run_training(); }, ExitCode::kBadData);
    fs::copy(backup, file, fs::copy_options::overwrite_existing);
    return text;
  }
};

TEST_F(DamagedCheckpointTest, ChecksumsMatchTheFiles) {
  train_two_steps();
  const auto files = io::read_json(checkpoint(2) / kChecksumsFile).at("files");
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint(2))) {
    const auto name = entry.path().lexically_relative(checkpoint(2)).generic_string();
    if (entry.is_directory() || name == kChecksumsFile) continue;
    ++count;
    ASSERT_TRUE(files.contains(name)) << name;
    EXPECT_EQ(files[name]["xxh64"], fmt::format("{:016x}", io::compute_checksum(entry.path()).xxh64)) << name;
  }
  EXPECT_EQ(files.size(), count);
}

TEST_F(DamagedCheckpointTest, DetectsAFlippedBitInAnyFile) {
  train_two_steps();
  const auto make_bit_flipper = [](double position) {
    return [position](const fs::path& file) { flip_bit(file, position); };
  };
  for (const char* name : {"model.safetensors", "trainer_state/optimizer.safetensors"}) {
    for (const double position : {0.5, 0.9, 1.0}) {
      EXPECT_THAT(get_refusal(name, make_bit_flipper(position)),
                  AllOf(HasSubstr("step-2: is not a complete checkpoint"), HasSubstr(name), HasSubstr("checksum"),
                        HasSubstr("resume from step-1"), HasSubstr(kChecksumsFile)));
    }
  }
  for (const char* name : {"config.json", "preprocessor_config.json", "tokenizer.json", "trainer_state/state.json",
                           "trainer_state/ledger.json"}) {
    const auto matches_file = AllOf(HasSubstr("step-2: is not a complete checkpoint"), HasSubstr(name),
                                    HasSubstr("resume from step-1"), HasSubstr(kChecksumsFile));
    EXPECT_THAT(get_refusal(name, make_bit_flipper(0.5)), matches_file);
    EXPECT_THAT(get_refusal(name, truncate_file), matches_file);
    EXPECT_THAT(get_refusal(name, [](const fs::path& file) { fs::remove(file); }), matches_file);
  }
  EXPECT_THAT(get_refusal(kChecksumsFile, truncate_file),
              AllOf(HasSubstr("step-2: is not a complete checkpoint"), HasSubstr(kChecksumsFile)));
  EXPECT_EQ(run_training().steps, kSteps) << "all is as it was";
}

TEST_F(DamagedCheckpointTest, ResumesWithoutChecksums) {
  train_two_steps();
  fs::remove(checkpoint(2) / kChecksumsFile);
  for (const char* name : {"config.json", "preprocessor_config.json", "trainer_state/state.json"}) {
    EXPECT_THAT(get_refusal(name, truncate_file), AllOf(HasSubstr("step-2: is not a complete checkpoint"),
                                                        HasSubstr(name), HasSubstr("resume from step-1")));
  }
  EXPECT_EQ(run_training().steps, kSteps);
}

TEST_F(DamagedCheckpointTest, CommandsRejectDamagedWeights) {
  train_two_steps();
  EXPECT_EQ(resolve_checkpoint(run_folder()), checkpoint(2));
  flip_bit(checkpoint(2) / "trainer_state/optimizer.safetensors", 0.5);
  std::ofstream(checkpoint(2) / "generation_config.json") << "{}";
  EXPECT_EQ(resolve_checkpoint(run_folder()), checkpoint(2)) << "what they do not read, or people edit";
  flip_bit(checkpoint(2) / "model.safetensors", 0.7);
  for (const auto& folder_or_checkpoint : {run_folder(), checkpoint(2)}) {
    EXPECT_THAT(get_usage_error([&] { resolve_checkpoint(folder_or_checkpoint); }, ExitCode::kBadData),
                AllOf(HasSubstr("model.safetensors"), HasSubstr("checksum"), HasSubstr(kChecksumsFile)));
  }
}

/// Each name is another way to replace the base's weights.
TEST_F(DamagedCheckpointTest, RejectsAnotherBase) {
  const fs::path base = folder() / "base";
  fs::copy(config_.model.path, base);
  config_.model.path = base;
  config_.lora.rank = 2;
  train_two_steps();
  const auto weights = base / "model.safetensors";
  const fs::path saved = folder() / "saved.safetensors";
  fs::copy(weights, saved);
  const auto change = [&] {
    const io::SafetensorsFile file(saved);
    io::NamedTensors tensors;
    for (const auto& name : file.names()) tensors.emplace_back(name, file.tensor(name) * 1.5);
    io::write_safetensors(weights, tensors);
  };
  change();
  EXPECT_THAT(get_usage_error([this] { run_training(); }),
              AllOf(HasSubstr("weights in model.path: was "), HasSubstr("training.resume=changed")));
  // Checkpoints of older versions have no fingerprint.
  const auto remove_fingerprint = [&] {
    auto state = io::read_ordered_json(checkpoint(2) / "trainer_state/state.json");
    state["fingerprint"].erase("weights in model.path");
    io::write_file(checkpoint(2) / "trainer_state/state.json", state.dump());
    fs::remove(checkpoint(2) / kChecksumsFile);
  };
  fs::copy(run_folder(), folder() / "kept", fs::copy_options::recursive);
  remove_fingerprint();
  EXPECT_EQ(run_training().steps, kSteps);
  fs::remove_all(run_folder());
  fs::copy(folder() / "kept", run_folder(), fs::copy_options::recursive);
  config_.resume_policy = ResumePolicy::kChanged;
  EXPECT_EQ(run_training().steps, kSteps);
  EXPECT_THAT(read_text(run_folder() / "events.jsonl"), HasSubstr("weights in model.path"));
}

TEST_F(DamagedCheckpointTest, AcceptsTheSameBaseInAnotherLayout) {
  const fs::path base = folder() / "base";
  fs::copy(config_.model.path, base);
  config_.model.path = base;
  train_two_steps();
  const io::SafetensorsFile file(base / "model.safetensors");
  io::NamedTensors tensors;
  for (const auto& name : file.names()) tensors.emplace_back(name, file.tensor(name).clone());
  fs::remove(base / "model.safetensors");
  io::write_safetensors(base / "model.safetensors", tensors, {{"format", "pt"}, {"written", "again"}});
  EXPECT_EQ(run_training().steps, kSteps);
}

/// A source that an epoch uses twice: 8 samples of 4 in steps of 2.
TEST_F(DamagedCheckpointTest, AcceptsRepeatedSources) {
  ASSERT_EQ(config_.data.train.sources().size(), 1U);
  const std::string path = config_.data.train.sources().front().path;
  ASSERT_EQ(config_.data.train.set(nlohmann::ordered_json::array({{{"path", path}, {"repeat", 2}}})), std::nullopt);
  config_.training.max_steps = {};
  config_.training.epochs = 1;
  config_.training.global_batch_size = config_.training.micro_batch_size.emplace(2);
  const int64_t steps = run_training().steps;
  EXPECT_EQ(steps, 4);
  fs::remove_all(checkpoint(steps));
  EXPECT_EQ(resolve_checkpoint(run_folder()), checkpoint(3));
  EXPECT_EQ(run_training().steps, steps);
}

}  // namespace

}  // namespace vlmtrain::train
