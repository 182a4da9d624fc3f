#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "train/loop/periodic_evaluation.h"
#include "train/small_run.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

/// Runs that evaluate on their training data.
class PeriodicEvaluationTest : public SmallRunTest {
 protected:
  PeriodicEvaluationTest() {
    config_.data.eval = config_.data.train.name();
    config_.evaluation.steps = 1;
    config_.evaluation.max_new_tokens = 4;
  }

  /// Returns the steps that were evaluated.
  std::vector<int64_t> list_evaluated_steps() const {
    std::vector<int64_t> steps;
    for (const auto& line : read_json_lines("metrics.jsonl")) {
      if (line.contains("evaluation")) steps.push_back(line["step"]);
    }
    return steps;
  }

  nlohmann::json read_state(int64_t step) const {
    const auto file = run_folder() / fmt::format("checkpoints/step-{}/trainer_state/state.json", step);
    return nlohmann::json::parse(read_text(file));
  }

  /// Returns the result of `vlmtrain eval` for a checkpoint of the run.
  evaluation::EvaluationResult evaluate_checkpoint(const std::filesystem::path& checkpoint) const {
    const auto processor = models::load_processor(checkpoint, make_processor_settings(config_.data));
    const auto model = models::load_model(checkpoint, at::kCPU, engine::to_dtype(config_.training.precision));
    return evaluation::evaluate(
        *model, *processor, *open_evaluation_records(config_),
        {.max_new_tokens = 4, .eos_token_ids = models::load_eos_token_ids(checkpoint, *processor)}, {});
  }

  /// Sets a learning rate that changes nothing, so that all evaluations are equal.
  void disable_learning() {
    config_.training.learning_rate = 0;
    config_.training.max_steps = 9;
  }

  std::string read_weights(int64_t step) const {
    const auto folder = run_folder() / fmt::format("checkpoints/step-{}", step);
    return read_text(folder / "model.safetensors") + read_text(folder / "trainer_state/optimizer.safetensors");
  }
};

}  // namespace vlmtrain::train
