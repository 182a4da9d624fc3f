#include "train/loop/periodic_evaluation.h"

#include <cmath>
#include <filesystem>

#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::train {

namespace {

/// Returns the settings that must be equal for results to be comparable
/// (EvaluationState::comparison_settings).
nlohmann::ordered_json make_comparison_settings(const Config& config, const EvaluationSet& evaluation_set) {
  std::error_code error;
  const auto file = std::filesystem::weakly_canonical(config.data.eval, error);
  nlohmann::ordered_json settings{
      {keys::data::kEval, error ? config.data.eval : file.string()},
      {"samples", evaluation_set.records()->size()},
      {keys::training::kEvalSamples, config.evaluation.samples ? std::to_string(*config.evaluation.samples) : "auto"},
      {keys::training::kBestMetric, to_string(config.evaluation.best_metric)}};
  if (config.evaluation.best_metric == evaluation::Metric::kNumeric)
    settings[keys::eval::kNumericTolerance] = config.evaluation.metrics.numeric_tolerance;
  return settings;
}

/// Returns the metric's value; nullopt if it is missing or not finite.
std::optional<double> get_metric_value(BestMetric metric, const report::EvaluationScore& score) {
  if (!std::isfinite(score.loss))
    return std::nullopt;  // without a finite loss the weights are unusable, even if some answers are correct
  const auto value = make_report_metric(metric).find_value(report::make_evaluation_baseline(/*step=*/0, score));
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string format_metric_value(BestMetric metric, double value) {
  switch (metric.kind()) {
    case BestMetric::kExactMatch:
      return fmt::format("exact match {:.1f} %", 100 * value);
    case BestMetric::kDice:
      return fmt::format("Dice {:.4f}", value);
    case BestMetric::kLoss:
    case BestMetric::kAnswerMetric:
      break;
  }
  return fmt::format("{} {:.4f}", to_string(metric), value);
}

}  // namespace

PeriodicEvaluation::PeriodicEvaluation(const Config& config, const EvaluationSet& evaluation_set,
                                       const models::VisionLanguageModel& model, const models::Processor& processor,
                                       evaluation::EvaluationSettings settings, bool computes_values,
                                       EvaluationState& state)
    : options_(config.evaluation),
      evaluation_set_(evaluation_set),
      model_(model),
      processor_(processor),
      settings_(std::move(settings)),
      computes_values_(computes_values),
      state_(state) {
  auto current_comparison_settings = make_comparison_settings(config, evaluation_set);
  if (state_.comparison_settings == current_comparison_settings) return;
  if (state_.best_step) {
    spdlog::warn(
        "{}, {} or {} changed: the best evaluation is reset, and checkpoints/step-{} is no longer kept as the best; "
        "copy it if you need it",
        keys::data::kEval, keys::training::kEvalSamples, keys::training::kBestMetric, *state_.best_step);
  }
  state_ = {.comparison_settings = std::move(current_comparison_settings),
            .best_step = {},
            .best_metric_value = {},
            .best_step_loss = {},
            .num_evaluations_without_improvement = 0,
            .is_due = state_.is_due};
}

bool PeriodicEvaluation::is_due(int64_t step, double epochs_before, double epochs_after, bool is_last) const {
  constexpr double kEpochRoundingError = 1e-9;  // rounding error of the epochs at the end of an epoch
  if (is_last || std::floor(epochs_after + kEpochRoundingError) > std::floor(epochs_before + kEpochRoundingError))
    return true;
  return options_.steps && step % *options_.steps == 0;
}

std::optional<report::EvaluationMetrics> PeriodicEvaluation::evaluate(int64_t step) {
  state_.is_due = true;
  const evaluation::EvaluationResult evaluation =
      evaluation::evaluate(model_, processor_, *evaluation_set_.records(), settings_, /*on_answer=*/{});
  settings_.batch_size = evaluation.batch_size;  // stays lower after out of memory
  if (!evaluation.is_complete) return std::nullopt;
  state_.is_due = false;
  notices_ = evaluation.notices;
  last_metrics_ = evaluation.make_metrics(computes_values_);
  last_metrics_->is_best = computes_values_ && update_best_metric(step, last_metrics_->total);
  return last_metrics_;
}

bool PeriodicEvaluation::update_best_metric(int64_t step, const report::EvaluationScore& score) {
  const auto value = get_metric_value(options_.best_metric, score);
  const bool is_loss_metric = options_.best_metric == BestMetric::kLoss;
  const bool is_lower_better = make_report_metric(options_.best_metric).is_lower_better;
  const auto is_better = [&] {
    if (!value || !state_.best_metric_value) return value.has_value();
    if (*value != *state_.best_metric_value)
      return is_lower_better ? *value < *state_.best_metric_value : *value > *state_.best_metric_value;
    return !is_loss_metric && state_.best_step_loss && score.loss < *state_.best_step_loss;
  };
  if (!is_better()) {
    ++state_.num_evaluations_without_improvement;
    return false;
  }
  state_.best_step = step;
  state_.best_metric_value = value;
  state_.best_step_loss = score.loss;
  state_.num_evaluations_without_improvement = 0;
  return true;
}

bool PeriodicEvaluation::should_stop_early() const {
  return options_.early_stopping_patience > 0 &&
         state_.num_evaluations_without_improvement >= options_.early_stopping_patience;
}

std::string PeriodicEvaluation::describe_early_stop() const {
  return fmt::format(
      "{} in a row without improvement ({}){}", pluralize(state_.num_evaluations_without_improvement, "evaluation"),
      keys::training::kEarlyStoppingPatience,
      state_.best_step ? fmt::format("; the best was {} at step {}", format_best_metric(), *state_.best_step) : "");
}

std::string PeriodicEvaluation::format_best_metric() const {
  return state_.best_metric_value ? format_metric_value(options_.best_metric, *state_.best_metric_value) : "";
}

evaluation::EvaluationSettings make_evaluation_settings(const Config& config, const RunSetup& run) {
  evaluation::EvaluationSettings settings{
      .batch_size = run.evaluation_plan.batch_size,
      .layout = run.evaluation_plan.layout,
      .num_workers = config.data.num_workers,
      .generate_answers = config.evaluation.generate_answers,
      .max_new_tokens = config.evaluation.max_new_tokens,
      .metrics = config.evaluation.metrics,
      .eos_token_ids = models::load_eos_token_ids(config.model.folder(), *run.processor, config.model.adapter_folder()),
      .on_bad_sample = config.data.on_bad_sample};
  if (run.host_plan) settings.prefetch_bytes = run.host_plan->evaluation_prefetch_bytes();
  return settings;
}

void reset_missing_best_evaluation(const std::filesystem::path& run_dir, EvaluationState& evaluation) {
  if (!evaluation.best_step || find_best_checkpoint(run_dir)) return;
  spdlog::warn("checkpoints/step-{}: the best checkpoint does not exist; the best evaluation is reset",
               *evaluation.best_step);
  evaluation.best_step.reset();
  evaluation.best_metric_value.reset();
  evaluation.best_step_loss.reset();
}

}  // namespace vlmtrain::train
