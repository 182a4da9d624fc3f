#include "vlmtrain/train/smoke_run.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "vlmtrain/base/hash.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::train {

namespace {

constexpr uint64_t kSmokeRunSeed = 1;
/// The smallest batch with several micro-batches of several samples, so that a step accumulates
/// gradients.
constexpr int64_t kNumSmokeRunSamples = 4;
constexpr int64_t kSmokeRunMicroBatchSize = 2;
/// High enough that the loss of a tiny model falls within a few steps.
constexpr double kSmokeRunLearningRate = 1e-3;

/// Returns the same samples on every machine. `vocab_size`: number of token ids.
std::vector<data::Sample> make_smoke_run_samples(const std::filesystem::path& model, int64_t vocab_size) {
  // Short, to keep steps fast. Chosen without measurement.
  const auto shape = models::compute_sample_shape(model, {.text_tokens = 96, .label_tokens = 32});
  std::vector<data::Sample> samples;
  for (int64_t index = 0; index < kNumSmokeRunSamples; ++index) {
    data::Sample sample = data::make_meta_sample(shape);
    RandomStream random(derive_stream_seed(kSmokeRunSeed, "trial", {static_cast<uint64_t>(index)}));
    for (int64_t& id : sample.token_ids) id = static_cast<int64_t>(random.uniform(static_cast<uint64_t>(vocab_size)));
    if (sample.pixel_values.defined()) {
      const at::Tensor bytes = at::empty(sample.pixel_values.sizes(), at::kByte);
      std::generate_n(bytes.data_ptr<uint8_t>(), bytes.numel(),
                      [&] { return static_cast<uint8_t>(random.uniform(256)); });
      sample.pixel_values = bytes.to(sample.pixel_values.scalar_type());
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

/// A model and its optimizer, built as for a run.
class SmokeTrainer {
 public:
  explicit SmokeTrainer(const SmokeRunSettings& settings) {
    const auto job = planner::make_job_with_precision({.model = settings.model}, settings.precision);
    model_ = planner::build_model(job, settings.device);
    models::initialize_weights(*model_, kSmokeRunSeed);
    training_state_ = std::make_unique<engine::TrainingState>(*model_, job.optimizer);
    samples_ = make_smoke_run_samples(settings.model, model_->output_weight().size(0));
  }

  /// Returns the gradients of the batch by parameter, fp32 on the CPU. Changes no weights.
  std::map<std::string, at::Tensor> compute_gradients() {
    const at::Tensor scale = training_state_->optimizer.loss_scale();
    engine::accumulate(*model_, make_input(), kStepLayout, scale, &training_state_->gradient_buckets);
    const double divisor = scale.defined() ? scale.item<double>() : 1;
    std::map<std::string, at::Tensor> gradients;
    for (const auto& parameter : model_->parameters().all()) {
      const at::Tensor gradient = training_state_->gradient_buckets.sum(parameter.name);
      if (gradient.defined()) gradients[parameter.name] = gradient.cpu().to(at::kFloat) / divisor;
    }
    training_state_->gradient_buckets.reset();
    return gradients;
  }

  /// Runs an optimizer step and returns its loss. Waits for the device.
  double step() {
    const engine::LearningRates learning_rates{kSmokeRunLearningRate, kSmokeRunLearningRate, kSmokeRunLearningRate};
    return engine::run_optimizer_step(*training_state_, make_input(), kStepLayout, learning_rates).loss.item<double>();
  }

 private:
  engine::StepInput make_input() const { return engine::make_step_input(objective_, samples_); }

  inline static const engine::StepLayout kStepLayout{
      .split = engine::split_evenly(kNumSmokeRunSamples, kSmokeRunMicroBatchSize), .recompute = {}};

  const engine::CrossEntropyObjective objective_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::TrainingState> training_state_;
  std::vector<data::Sample> samples_;
};

double compute_gradient_norm(const SmokeRunResult& run) {
  double sum_of_squares = 0;
  for (const auto& [name, gradient] : run.gradients) sum_of_squares += std::pow(gradient.norm().item<double>(), 2);
  return std::sqrt(sum_of_squares);
}

}  // namespace

SmokeRunResult run_smoke_training(const SmokeRunSettings& settings) {
  using Clock = std::chrono::steady_clock;
  SmokeTrainer trainer(settings);
  SmokeRunResult run{.gradients = trainer.compute_gradients()};
  run.first_loss = run.last_loss = trainer.step();
  const auto start = Clock::now();
  double seconds = 0;
  for (run.steps = 1; run.steps < kMinSmokeRunSteps || seconds < settings.seconds; ++run.steps) {
    run.last_loss = trainer.step();
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  run.steps_per_second = static_cast<double>(run.steps - 1) / seconds;
  return run;
}

SmokeRunDifference compare_smoke_runs(const SmokeRunResult& actual, const SmokeRunResult& expected) {
  SmokeRunDifference result{.loss = std::abs(actual.first_loss / expected.first_loss - 1)};
  const double min_gradient_norm = compute_gradient_norm(expected) / 100;
  for (const auto& [name, gradient] : expected.gradients) {
    const auto actual_gradient = actual.gradients.find(name);
    const double deviation = actual_gradient == actual.gradients.end()
                                 ? std::numeric_limits<double>::infinity()
                                 : actual_gradient->second.sub(gradient).norm().item<double>() /
                                       std::max(gradient.norm().item<double>(), min_gradient_norm);
    // Written so that NaN counts as the largest deviation.
    if (deviation <= result.gradient) continue;
    result.gradient = deviation;
    result.parameter = name;
    if (std::isnan(deviation)) break;
  }
  return result;
}

SmokeRunTolerance get_smoke_run_tolerance(engine::Precision precision) {
  // Multiples of the rounding unit, 2^-24 in fp32. In fp32 only the order of long sums differs.
  // Lower precisions also round between operations.
  if (precision == engine::Precision::kFp32) return {.loss = 128.0 / (1 << 24), .gradient = 1024.0 / (1 << 24)};
  const double unit_roundoff = precision == engine::Precision::kBf16 ? 1.0 / 256 : 1.0 / 2048;
  return {.loss = 2 * unit_roundoff, .gradient = 32 * unit_roundoff};
}

}  // namespace vlmtrain::train
