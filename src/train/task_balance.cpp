#include "train/task_balance.h"

#include <fmt/ranges.h>

#include <utility>

#include "train/task_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_reason.h"

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

namespace {

void check_options(const engine::BalanceOptions& options, const data::Tasks& tasks) {
  if (options.task_weighting != engine::TaskWeighting::kFixed && !options.task_weights.empty()) {
    throw usage_error(
        "training.task_weights: has entries, but training.task_weighting is not fixed; set it to fixed, or take the "
        "entries out");
  }
  if (tasks.count() > 1) return;
  const std::string task_name = tasks.names().empty() ? "" : fmt::format(", {}", tasks.names().front());
  constexpr const char* kAdvice = "; name tasks in its records (docs/tasks.md)";
  if (options.task_weighting != engine::TaskWeighting::kNone) {
    throw usage_error("training.task_weighting: data.train has only one task{}{}, or set it to none", task_name,
                      kAdvice);
  }
  if (options.gradient_conflicts != engine::GradientConflicts::kNone) {
    throw usage_error("training.gradient_conflicts: data.train has only one task{}{}, or set it to none", task_name,
                      kAdvice);
  }
}

std::vector<double> make_initial_weights(const engine::BalanceOptions& options, const data::Tasks& tasks) {
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
  throw InternalError("unknown weighting of tasks");
}

}  // namespace

engine::TaskSettings make_task_settings(const engine::BalanceOptions& options, const data::Tasks& tasks) {
  check_options(options, tasks);
  return {.count = tasks.count(),
          .weights = make_initial_weights(options, tasks),
          .gradient_norms = options.task_weighting == engine::TaskWeighting::kGradNorm,
          .resolve_conflicts = options.gradient_conflicts == engine::GradientConflicts::kPcGrad};
}

TaskBalance::TaskBalance(const engine::BalanceOptions& options, const data::Tasks& tasks,
                         std::optional<engine::MaskLossWeights> masks)
    : tasks_(tasks), settings_(make_task_settings(options, tasks)), masks_(masks) {
  if (settings_.gradient_norms) {
    gradnorm_.emplace(tasks.count(), engine::GradNormSettings{.alpha = options.gradnorm_alpha,
                                                              .learning_rate = options.gradnorm_learning_rate});
  }
}

void TaskBalance::assign_tasks(std::vector<data::Sample>& samples) const {
  if (settings_.is_multi_task()) tasks_.assign_task_numbers(samples);
}

engine::SplitConstraint TaskBalance::split_constraint(const std::vector<data::Sample>& samples) const {
  return engine::CrossEntropy(settings_).split_constraint(samples);
}

std::shared_ptr<const engine::Objective> TaskBalance::make_objective(int64_t step, uint64_t step_seed) {
  for (; !observations_.empty() && observations_.front().step <= step - 2; observations_.pop_front()) {
    gradnorm_->update(observations_.front().results, observations_.front().weights);
  }
  if (gradnorm_) settings_.weights = gradnorm_->weights();
  settings_.seed = step_seed;
  return engine::make_objective({.tasks = settings_, .masks = masks_});
}

void TaskBalance::update(const std::vector<engine::TaskResult>& results, const std::vector<double>& weights,
                         report::StepMetrics& metrics) {
  for (size_t task = 0; task < results.size(); ++task) {
    const engine::TaskResult& result = results[task];
    if (result.counts.samples == 0) continue;
    metrics.tasks[tasks_.names()[task]] = {.loss = result.loss,
                                           .label_tokens = result.counts.label_tokens,
                                           .samples = result.counts.samples,
                                           .weight = weights.empty() ? 1.0 : weights[task],
                                           .accuracy = result.accuracy};
  }
  if (gradnorm_ && !metrics.skipped) {
    observations_.push_back({.step = metrics.step, .results = results, .weights = weights});
  }
}

nlohmann::ordered_json TaskBalance::state() const {
  if (!gradnorm_) return nullptr;
  nlohmann::ordered_json first_losses = nlohmann::ordered_json::array();
  for (const auto& loss : gradnorm_->state().first_losses) {
    first_losses.push_back(loss ? nlohmann::ordered_json(*loss) : nlohmann::ordered_json());
  }
  nlohmann::ordered_json observations = nlohmann::ordered_json::array();
  for (const auto& observation : observations_) {
    observations.push_back(
        {{"step", observation.step}, {"weights", observation.weights}, {"tasks", observation.results}});
  }
  return {{"names", tasks_.names()},
          {"weights", gradnorm_->weights()},
          {"first_losses", first_losses},
          {"observations", observations}};
}

bool TaskBalance::matches(const nlohmann::ordered_json& state) const {
  if (!gradnorm_) return true;
  return state.is_object() && state.value("names", nlohmann::ordered_json()) == nlohmann::ordered_json(tasks_.names());
}

void TaskBalance::restore(const nlohmann::ordered_json& state, const std::string& source) {
  if (!gradnorm_) return;
  if (!matches(state)) {
    throw data_error(
        "{}: has no weights of the tasks {}; resume with the data set that the run was started with, or start anew in "
        "another output.dir",
        source, fmt::join(tasks_.names(), ", "));
  }
  try {
    engine::GradNorm::State weights{.weights = state.at("weights"), .first_losses = {}};
    for (const auto& loss : state.at("first_losses")) {
      weights.first_losses.push_back(loss.is_null() ? std::nullopt : std::optional{loss.get<double>()});
    }
    if (weights.weights.size() != tasks_.names().size() || weights.first_losses.size() != weights.weights.size()) {
      throw data_error("{}: has weights of another number of tasks; take an older checkpoint", source);
    }
    gradnorm_->set_state(std::move(weights));
    for (const auto& observation : state.at("observations")) {
      observations_.push_back(
          {.step = observation.at("step"), .results = observation.at("tasks"), .weights = observation.at("weights")});
    }
  } catch (const nlohmann::json::exception& error) {
    throw data_error("{}: the weights of the tasks are damaged ({}); take an older checkpoint", source,
                     io::describe_json_exception(error));
  }
}

std::string TaskBalance::description() const {
  if (!settings_.is_multi_task()) return {};
  std::vector<std::string> tasks;
  for (size_t task = 0; task < tasks_.names().size(); ++task) {
    std::string text = fmt::format("{} ({} samples", tasks_.names()[task], tasks_.samples()[task]);
    if (!settings_.weights.empty()) text += fmt::format(", weight {:.4g}", settings_.weights[task]);
    tasks.push_back(text + ")");
  }
  return fmt::format("tasks: {}{}{}", fmt::join(tasks, ", "), gradnorm_ ? "; GradNorm moves the weights" : "",
                     settings_.resolve_conflicts ? "; PCGrad resolves conflicts between their gradients" : "");
}

}  // namespace vlmtrain::train
