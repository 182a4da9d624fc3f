#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include "e2e/command.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

/// Saved weights of an fp32 checkpoint that is trained in other precisions.
class SavedWeightsTest : public CommandTest {
 protected:
  static std::vector<std::string> settings(const std::string& dir, const std::string& precision,
                                           const std::string& dtype, int steps) {
    return {"output.dir=" + dir,           "training.precision=" + precision,
            "output.dtype=" + dtype,       "training.lr_scheduler=constant",
            "training.max_steps=4",        "output.save_steps=" + std::to_string(steps),
            "output.sample_predictions=0", "model.freeze_vision_tower=true"};
  }
};

TEST_F(SavedWeightsTest, AnFp32BaseTrainedInBf16IsSavedInFp32) {
  train_well(settings("run", "bf16", "auto", 0));
  const auto folder_saved = folder() / "run/checkpoints/step-4";
  const io::CheckpointTensors saved(folder_saved), base(checkpoint());
  const io::SafetensorsFile state(folder_saved / "trainer_state/optimizer.safetensors");
  int64_t frozen = 0, train_result = 0;
  for (const auto& name : base.names()) {
    ASSERT_EQ(saved.info(name).dtype, at::kFloat);
    if (state.contains("master." + name)) {
      EXPECT_TRUE(at::equal(saved.tensor(name), state.tensor("master." + name))) << name;
      ++train_result;
    } else {
      EXPECT_TRUE(at::equal(saved.tensor(name), base.tensor(name))) << name << " was frozen";
      ++frozen;
    }
  }
  EXPECT_GT(frozen, 10);
  EXPECT_GT(train_result, 10);
}

/// The results of a run do not depend on where it was interrupted, whatever the type of its
/// checkpoints.
TEST_F(SavedWeightsTest, ResumesExactlyWithAnyOutputDtype) {
  for (const auto& [precision, dtype] :
       std::vector<std::pair<std::string, std::string>>{{"bf16", "auto"}, {"fp32", "bf16"}, {"bf16", "fp16"}}) {
    const std::string uninterrupted = "whole-" + precision + dtype, resumed = "pieces-" + precision + dtype;
    train_well(settings(uninterrupted, precision, dtype, 2));
    train_well(settings(resumed, precision, dtype, 2));
    std::filesystem::remove_all(folder() / resumed / "checkpoints/step-4");
    train_well(settings(resumed, precision, dtype, 2));
    for (const char* file : {"model.safetensors", "config.json", "trainer_state/optimizer.safetensors"}) {
      const auto path = std::filesystem::path("checkpoints/step-4") / file;
      EXPECT_EQ(read_text(folder() / uninterrupted / path), read_text(folder() / resumed / path))
          << uninterrupted << " " << file;
    }
    const auto losses = [&](const std::string& run) {
      std::vector<std::string> texts;
      for (const auto& step : step_lines(run + "/metrics.jsonl")) texts.push_back(step["loss"].dump());
      return texts;
    };
    EXPECT_EQ(losses(uninterrupted), losses(resumed)) << uninterrupted;
  }
}

TEST_F(SavedWeightsTest, MissingBaseStopsAResumedRun) {
  std::filesystem::copy(checkpoint(), folder() / "base", std::filesystem::copy_options::recursive);
  auto with_base = settings("run", "fp32", "auto", 2);
  with_base.emplace_back("model.path=base");
  train_well(with_base);
  std::filesystem::remove_all(folder() / "run/checkpoints/step-4");
  const std::string metrics = read_text(folder() / "run/metrics.jsonl");
  std::filesystem::remove(folder() / "base/model.safetensors");
  const Result result = train(with_base);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("base: has no weights"));
  EXPECT_EQ(read_text(folder() / "run/metrics.jsonl"), metrics) << "no step was run";
}

}  // namespace

}  // namespace vlmtrain::e2e
