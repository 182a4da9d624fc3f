#include "vlmtrain/train/trial.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "vlmtrain/base/rng.h"
#include "vlmtrain/engine/cross_entropy.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::train {

namespace {

constexpr uint64_t kTrialSeed = 1;
constexpr int64_t kTrialSamples = 4;
constexpr int64_t kTrialMicroBatch = 2;
constexpr double kTrialRate = 1e-3;

/// The same wherever they are drawn.
std::vector<data::Sample> trial_samples(const std::filesystem::path& model, int64_t vocabulary) {
  const auto shape = models::shape_of(model, {.text_tokens = 96, .label_tokens = 32});
  std::vector<data::Sample> samples;
  for (int64_t index = 0; index < kTrialSamples; ++index) {
    data::Sample sample = data::sample_of(shape);
    RandomStream random(stream_seed(kTrialSeed, "trial", {static_cast<uint64_t>(index)}));
    for (int64_t& id : sample.token_ids) id = static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary)));
    if (sample.pixel_values.defined()) {
      const at::Tensor bytes = at::empty(sample.pixel_values.sizes(), at::kByte);
      std::generate_n(bytes.data_ptr<uint8_t>(), bytes.numel(),
                      [&] { return static_cast<uint8_t>(random.below(256)); });
      sample.pixel_values = bytes.to(sample.pixel_values.scalar_type());
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

/// A model and its optimizer, as a run has them.
class TrialRun {
 public:
  explicit TrialRun(const TrialSettings& settings) {
    const auto job = planner::with_precision({.model = settings.model}, settings.precision);
    model_ = planner::build_model(job, settings.device);
    models::initialize_weights(*model_, kTrialSeed);
    training_ = std::make_unique<engine::Training>(*model_, job.optimizer);
    samples_ = trial_samples(settings.model, model_->output_weight().size(0));
  }

  std::map<std::string, at::Tensor> gradients() {
    const at::Tensor scale = training_->optimizer.loss_scale();
    engine::accumulate(*model_, input(), kLayout, scale, &training_->sums);
    const double divisor = scale.defined() ? scale.item<double>() : 1;
    std::map<std::string, at::Tensor> gradients;
    for (const auto& parameter : model_->parameters().all()) {
      const at::Tensor gradient = training_->sums.sum(parameter.name);
      if (gradient.defined()) gradients[parameter.name] = gradient.cpu().to(at::kFloat) / divisor;
    }
    training_->sums.drop();
    return gradients;
  }

  /// Waits for it.
  double step() {
    const engine::LearningRates rates{kTrialRate, kTrialRate, kTrialRate};
    return engine::optimizer_step(*training_, input(), kLayout, rates).loss.item<double>();
  }

 private:
  engine::StepInput input() const { return engine::step_input(objective_, samples_); }

  inline static const engine::StepLayout kLayout{.cut = engine::equal_cut(kTrialSamples, kTrialMicroBatch),
                                                 .recompute = {}};

  const engine::CrossEntropy objective_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::Training> training_;
  std::vector<data::Sample> samples_;
};

double whole_norm(const Trial& trial) {
  double squares = 0;
  for (const auto& [name, gradient] : trial.gradients) squares += std::pow(gradient.norm().item<double>(), 2);
  return std::sqrt(squares);
}

}  // namespace

Trial try_training(const TrialSettings& settings) {
  using Clock = std::chrono::steady_clock;
  TrialRun run(settings);
  Trial trial{.gradients = run.gradients()};
  trial.first_loss = trial.last_loss = run.step();
  const auto start = Clock::now();
  double seconds = 0;
  for (trial.steps = 1; trial.steps < kFewestSteps || seconds < settings.seconds; ++trial.steps) {
    trial.last_loss = run.step();
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  trial.steps_per_second = static_cast<double>(trial.steps - 1) / seconds;
  return trial;
}

TrialDifference difference(const Trial& found, const Trial& wanted) {
  TrialDifference difference{.loss = std::abs(found.first_loss / wanted.first_loss - 1)};
  const double least_norm = whole_norm(wanted) / 100;
  for (const auto& [name, gradient] : wanted.gradients) {
    const auto other = found.gradients.find(name);
    const double apart = other == found.gradients.end() ? std::numeric_limits<double>::infinity()
                                                        : other->second.sub(gradient).norm().item<double>() /
                                                              std::max(gradient.norm().item<double>(), least_norm);
    // What is not a number is further off than any number.
    if (apart <= difference.gradient) continue;
    difference.gradient = apart;
    difference.parameter = name;
    if (std::isnan(apart)) break;
  }
  return difference;
}

TrialTolerance tolerance_of(engine::Precision precision) {
  // In fp32 it is the order of long sums that differs, not the rounding of what is kept between operations.
  if (precision == engine::Precision::kFp32) return {.loss = 128.0 / (1 << 24), .gradient = 1024.0 / (1 << 24)};
  const double unit = precision == engine::Precision::kBf16 ? 1.0 / 256 : 1.0 / 2048;
  return {.loss = 2 * unit, .gradient = 32 * unit};
}

}  // namespace vlmtrain::train
