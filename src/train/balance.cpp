#include "train/balance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::engine {

void to_json(nlohmann::ordered_json& json, const TaskResult& result) {
  json = {{"samples", result.counts.samples},
          {"label_tokens", result.counts.label_tokens},
          {"loss", result.loss},
          {"gradient_norm", result.gradient_norm}};
}
void from_json(const nlohmann::ordered_json& json, TaskResult& result) {
  json.at("samples").get_to(result.counts.samples);
  json.at("label_tokens").get_to(result.counts.label_tokens);
  json.at("loss").get_to(result.loss);
  json.at("gradient_norm").get_to(result.gradient_norm);
}

}  // namespace vlmtrain::engine

namespace vlmtrain::train {

void check_batch_scaling(const engine::TrainingOptions& training) {
  const engine::BatchAndTaskOptions& batch_and_tasks = training.batch_and_tasks;
  const bool scales = batch_and_tasks.batch_scaling != engine::BatchScaling::kNone;
  if (batch_and_tasks.global_batch_tokens && !training.max_steps) {
    throw usage_error("{}: the number of steps per epoch is not known in advance; set {}",
                      keys::training::kGlobalBatchTokens, keys::training::kMaxSteps);
  }
  if (batch_and_tasks.global_batch_tokens && batch_and_tasks.reference_batch_size) {
    throw usage_error(
        "{}: counts samples, but with {} the number of samples per step varies; set one of the two to auto",
        keys::training::kReferenceBatchSize, keys::training::kGlobalBatchTokens);
  }
  if (scales && !batch_and_tasks.global_batch_tokens && !batch_and_tasks.reference_batch_size) {
    throw usage_error("{}: {} needs a reference; set {} or {}, or set it to none", keys::training::kBatchScaling,
                      engine::to_string(batch_and_tasks.batch_scaling), keys::training::kReferenceBatchSize,
                      keys::training::kGlobalBatchTokens);
  }
  if (!scales && batch_and_tasks.reference_batch_size) {
    throw usage_error("{}: has no effect with {}=none; set it to sqrt (usual for adaptive optimizers) or linear",
                      keys::training::kReferenceBatchSize, keys::training::kBatchScaling);
  }
}

double compute_reference_lr_factor(const engine::TrainingOptions& training) {
  if (!training.batch_and_tasks.reference_batch_size) return 1.0;
  return engine::compute_learning_rate_factor(training.batch_and_tasks.batch_scaling,
                                              static_cast<double>(training.global_batch_size) /
                                                  static_cast<double>(*training.batch_and_tasks.reference_batch_size));
}

double compute_step_lr_factor(const engine::TrainingOptions& training, int64_t tokens) {
  if (!training.batch_and_tasks.global_batch_tokens) return 1.0;
  return engine::compute_learning_rate_factor(
      training.batch_and_tasks.batch_scaling,
      static_cast<double>(tokens) / static_cast<double>(*training.batch_and_tasks.global_batch_tokens));
}

std::string describe_batch_scaling(const engine::TrainingOptions& training) {
  const engine::BatchAndTaskOptions& batch_and_tasks = training.batch_and_tasks;
  const std::string rule = engine::to_string(batch_and_tasks.batch_scaling);
  if (batch_and_tasks.global_batch_tokens) {
    const std::string text = fmt::format("steps of about {} tokens, at most {} samples",
                                         *batch_and_tasks.global_batch_tokens, training.global_batch_size);
    if (batch_and_tasks.batch_scaling == engine::BatchScaling::kNone)
      return text + "; the learning rates are not scaled";
    return text + fmt::format("; the learning rates of a step are multiplied by {} ({}={})",
                              batch_and_tasks.batch_scaling == engine::BatchScaling::kSqrt
                                  ? fmt::format("√(its tokens / {})", *batch_and_tasks.global_batch_tokens)
                                  : fmt::format("its tokens / {}", *batch_and_tasks.global_batch_tokens),
                              keys::training::kBatchScaling, rule);
  }
  if (!batch_and_tasks.reference_batch_size) return {};
  const engine::LearningRates peak = compute_learning_rates(training, 1.0);
  return fmt::format(
      "{}={}: the learning rates, tuned for {} samples, are multiplied by {:.4g} for {}. Peaks: language model {:.4g}, "
      "projector {:.4g}, vision tower {:.4g}",
      keys::training::kBatchScaling, rule, *batch_and_tasks.reference_batch_size, compute_reference_lr_factor(training),
      training.global_batch_size, peak.language_model, peak.projector, peak.vision_tower);
}

namespace {

/// Scales weights by task to a mean of 1 over the samples. `samples`: number of samples by task.
std::vector<double> normalize_task_weights(std::vector<double> weights, const std::vector<int64_t>& samples) {
  double sum = 0;
  double count = 0;
  for (size_t task = 0; task < weights.size(); ++task) {
    sum += weights[task] * static_cast<double>(samples[task]);
    count += static_cast<double>(samples[task]);
  }
  for (double& weight : weights) weight *= count / sum;
  return weights;
}

/// Returns nullopt unless `text` is a finite number above 0.
std::optional<double> parse_task_weight(std::string_view text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  const bool is_valid_weight =
      error == std::errc() && end == text.data() + text.size() && weight > 0 && std::isfinite(weight);
  return is_valid_weight ? std::optional{weight} : std::nullopt;
}

}  // namespace

std::vector<double> parse_task_weights(const std::vector<std::string>& entries, const data::TaskTable& tasks) {
  std::vector<std::optional<double>> weights(tasks.names().size());
  std::vector<std::string> errors;
  for (const auto& entry : entries) {
    const auto equals_position = entry.rfind('=');  // a task name may contain =
    const std::string name = entry.substr(0, equals_position);
    const auto weight =
        equals_position == std::string::npos ? std::nullopt : parse_task_weight(entry.substr(equals_position + 1));
    if (!weight) {
      errors.push_back(fmt::format("{}: is not name=weight with a weight above 0, such as caption=0.5", entry));
      continue;
    }
    const auto it = std::ranges::find(tasks.names(), name);
    if (it == tasks.names().end()) {
      const auto suggestion = find_nearest_word(name, tasks.names());
      errors.push_back(fmt::format("{}: is not a task of {}; {}", name, keys::data::kTrain,
                                   suggestion ? fmt::format("did you mean {}?", *suggestion)
                                              : fmt::format("its tasks are {}", fmt::join(tasks.names(), ", "))));
      continue;
    }
    auto& slot = weights[static_cast<size_t>(it - tasks.names().begin())];
    if (slot) errors.push_back(fmt::format("{}: is given twice; keep one", name));
    slot = weight;
  }
  std::vector<double> complete_weights;
  for (size_t task = 0; task < weights.size(); ++task) {
    if (!weights[task]) errors.push_back(fmt::format("{0}: has no weight; add {0}=1", tasks.names()[task]));
    complete_weights.push_back(weights[task].value_or(1.0));
  }
  if (!errors.empty()) throw usage_error("{}:\n  {}", keys::training::kTaskWeights, fmt::join(errors, "\n  "));
  return normalize_task_weights(std::move(complete_weights), tasks.sample_counts());
}

std::vector<double> compute_inverse_size_weights(const data::TaskTable& tasks) {
  std::vector<double> weights;
  for (const int64_t samples : tasks.sample_counts()) weights.push_back(1.0 / static_cast<double>(samples));
  return normalize_task_weights(std::move(weights), tasks.sample_counts());
}

namespace {

/// Throws UserError (kUsage) if keys contradict each other or need several tasks.
void check_task_options(const engine::BatchAndTaskOptions& options, const data::TaskTable& tasks) {
  if (options.task_weighting != engine::TaskWeighting::kFixed && !options.task_weights.empty()) {
    throw usage_error("{}: has entries, but {} is not fixed; set it to fixed, or remove the entries",
                      keys::training::kTaskWeights, keys::training::kTaskWeighting);
  }
  if (tasks.num_tasks() > 1) return;
  const std::string task_name_suffix = tasks.names().empty() ? "" : fmt::format(", {}", tasks.names().front());
  constexpr const char* kAdvice = "; name tasks in its records (docs/how-to/several-tasks.md)";
  if (options.task_weighting != engine::TaskWeighting::kNone) {
    throw usage_error("{}: {} has only one task{}{}, or set it to none", keys::training::kTaskWeighting,
                      keys::data::kTrain, task_name_suffix, kAdvice);
  }
  if (options.gradient_conflicts != engine::GradientConflictMethod::kNone) {
    throw usage_error("{}: {} has only one task{}{}, or set it to none", keys::training::kGradientConflicts,
                      keys::data::kTrain, task_name_suffix, kAdvice);
  }
}

/// Returns the initial weights by task; empty if tasks are not weighted.
std::vector<double> make_initial_task_weights(const engine::BatchAndTaskOptions& options,
                                              const data::TaskTable& tasks) {
  switch (options.task_weighting) {
    case engine::TaskWeighting::kNone:
      return {};
    case engine::TaskWeighting::kFixed:
      return parse_task_weights(options.task_weights, tasks);
    case engine::TaskWeighting::kInverseSize:
      return compute_inverse_size_weights(tasks);
    case engine::TaskWeighting::kGradNorm:
      return std::vector(tasks.names().size(), 1.0);
  }
  throw InternalError("unknown task weighting");
}

}  // namespace

engine::TaskSettings make_task_settings(const engine::BatchAndTaskOptions& options, const data::TaskTable& tasks) {
  check_task_options(options, tasks);
  return {.num_tasks = tasks.num_tasks(),
          .weights = make_initial_task_weights(options, tasks),
          .measure_gradient_norms = options.task_weighting == engine::TaskWeighting::kGradNorm,
          .resolve_gradient_conflicts = options.gradient_conflicts == engine::GradientConflictMethod::kPcGrad};
}

TaskBalancer::TaskBalancer(const engine::BatchAndTaskOptions& options, const data::TaskTable& tasks,
                           std::optional<engine::TextAndMaskLossWeights> masks)
    : tasks_(tasks), settings_(make_task_settings(options, tasks)), masks_(masks) {
  if (settings_.measure_gradient_norms) {
    gradnorm_.emplace(tasks.num_tasks(), engine::GradNormSettings{.alpha = options.gradnorm_alpha,
                                                                  .learning_rate = options.gradnorm_learning_rate});
  }
}

void TaskBalancer::assign_tasks(std::vector<data::Sample>& samples) const {
  if (settings_.is_multi_task()) tasks_.assign_task_indices(samples);
}

engine::SplitConstraint TaskBalancer::make_split_constraint(const std::vector<data::Sample>& samples) const {
  return engine::CrossEntropyObjective(settings_).make_split_constraint(samples);
}

std::shared_ptr<const engine::Objective> TaskBalancer::make_objective(int64_t step, uint64_t step_seed) {
  // The results of step - 1 are not used, since they may not have reached the host (see the class).
  for (; !gradnorm_observations_.empty() && gradnorm_observations_.front().step <= step - 2;
       gradnorm_observations_.pop_front()) {
    gradnorm_->update_weights(gradnorm_observations_.front().results, gradnorm_observations_.front().weights);
  }
  if (gradnorm_) settings_.weights = gradnorm_->weights();
  settings_.seed = step_seed;
  return engine::make_objective({.tasks = settings_, .masks = masks_});
}

void TaskBalancer::update(const std::vector<engine::TaskResult>& results, const std::vector<double>& weights,
                          report::StepMetrics& metrics) {
  for (size_t task = 0; task < results.size(); ++task) {
    const engine::TaskResult& result = results[task];
    if (result.counts.samples == 0) continue;
    metrics.tasks[tasks_.names()[task]] = {
        .loss = result.loss,
        .label_tokens = result.counts.label_tokens,
        .label_weight = report::make_label_weight(result.counts.label_tokens, result.counts.label_weight),
        .samples = result.counts.samples,
        .weight = weights.empty() ? 1.0 : weights[task],
        .accuracy = result.accuracy};
  }
  if (gradnorm_ && !metrics.skipped) {
    gradnorm_observations_.push_back({.step = metrics.step, .results = results, .weights = weights});
  }
}

nlohmann::ordered_json TaskBalancer::state() const {
  if (!gradnorm_) return nullptr;
  nlohmann::ordered_json initial_losses = nlohmann::ordered_json::array();
  for (const auto& loss : gradnorm_->state().initial_losses) {
    initial_losses.push_back(loss ? nlohmann::ordered_json(*loss) : nlohmann::ordered_json());
  }
  nlohmann::ordered_json observations_json = nlohmann::ordered_json::array();
  for (const auto& observation : gradnorm_observations_) {
    observations_json.push_back(
        {{"step", observation.step}, {"weights", observation.weights}, {"tasks", observation.results}});
  }
  return {{"names", tasks_.names()},
          {"weights", gradnorm_->weights()},
          {"first_losses", initial_losses},
          {"observations", observations_json}};
}

bool TaskBalancer::has_same_tasks(const nlohmann::ordered_json& state) const {
  if (!gradnorm_) return true;
  return state.is_object() && state.value("names", nlohmann::ordered_json()) == nlohmann::ordered_json(tasks_.names());
}

void TaskBalancer::restore(const nlohmann::ordered_json& state, const std::string& source) {
  if (!gradnorm_) return;
  if (!has_same_tasks(state)) {
    throw data_error(
        "{}: has no weights for the tasks {}; resume with the original data set, or start a new run in another {}",
        source, fmt::join(tasks_.names(), ", "), keys::output::kDir);
  }
  try {
    engine::GradNorm::State weights{.weights = state.at("weights"), .initial_losses = {}};
    for (const auto& loss : state.at("first_losses")) {
      weights.initial_losses.push_back(loss.is_null() ? std::nullopt : std::optional{loss.get<double>()});
    }
    if (weights.weights.size() != tasks_.names().size() || weights.initial_losses.size() != weights.weights.size()) {
      throw data_error("{}: has weights for a different number of tasks; use an older checkpoint", source);
    }
    gradnorm_->set_state(std::move(weights));
    for (const auto& observation : state.at("observations")) {
      gradnorm_observations_.push_back(
          {.step = observation.at("step"), .results = observation.at("tasks"), .weights = observation.at("weights")});
    }
  } catch (const nlohmann::json::exception& error) {
    throw data_error("{}: the task weights are damaged ({}); use an older checkpoint", source,
                     io::describe_json_exception(error));
  }
}

std::string TaskBalancer::describe() const {
  if (!settings_.is_multi_task()) return {};
  std::vector<std::string> tasks;
  for (size_t task = 0; task < tasks_.names().size(); ++task) {
    std::string text = fmt::format("{} ({} samples", tasks_.names()[task], tasks_.sample_counts()[task]);
    if (!settings_.weights.empty()) text += fmt::format(", weight {:.4g}", settings_.weights[task]);
    tasks.push_back(text + ")");
  }
  return fmt::format("tasks: {}{}{}", fmt::join(tasks, ", "), gradnorm_ ? "; GradNorm adjusts the weights" : "",
                     settings_.resolve_gradient_conflicts ? "; PCGrad resolves conflicts between their gradients" : "");
}

}  // namespace vlmtrain::train
