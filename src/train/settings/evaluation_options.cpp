#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "train/settings/options.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/train/best_metric.h"

namespace vlmtrain::train {

namespace {

/// Returns "anls, cer, …".
std::string join_metric_names() {
  std::vector<std::string> names;
  for (const auto& [name, metric] : evaluation::get_metric_names()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

nlohmann::ordered_json metrics_to_json(const std::vector<evaluation::Metric>& metrics) {
  auto names = nlohmann::ordered_json::array();
  for (const evaluation::Metric metric : metrics) names.push_back(evaluation::to_string(metric));
  return names;
}

/// Stores the metrics with these names, a list or a single name. Returns an error message without
/// the key for other values, and stores nothing.
std::optional<std::string> parse_metrics(const nlohmann::ordered_json& names,
                                         std::vector<evaluation::Metric>& metrics) {
  const auto& known_names = evaluation::get_metric_names();
  std::vector<evaluation::Metric> parsed_metrics;
  const bool is_list = names.is_array() || names.is_null();
  for (const auto& item : is_list ? names : nlohmann::ordered_json::array({names})) {
    const std::string name = item.is_string() ? item.get<std::string>() : item.dump();
    const auto entry = std::ranges::find(known_names, name, &std::pair<std::string, evaluation::Metric>::first);
    if (entry == known_names.end()) {
      return fmt::format("must be a list of {}, not {}", join_metric_names(), make_excerpt(name));
    }
    if (std::ranges::find(parsed_metrics, entry->second) != parsed_metrics.end())
      return fmt::format("has {} twice; remove one", entry->first);
    parsed_metrics.push_back(entry->second);
  }
  metrics = std::move(parsed_metrics);
  return std::nullopt;
}

}  // namespace

const std::vector<std::pair<std::string, BestMetric>>& get_best_metric_names() {
  static const auto names = [] {
    std::vector<std::pair<std::string, BestMetric>> metrics{
        {"loss", BestMetric::kLoss}, {"exact_match", BestMetric::kExactMatch}, {"dice", BestMetric::kDice}};
    for (const auto& [name, metric] : evaluation::get_metric_names()) metrics.emplace_back(name, metric);
    return metrics;
  }();
  return names;
}

const char* to_string(BestMetric metric) {
  return std::ranges::find(get_best_metric_names(), metric, &std::pair<std::string, BestMetric>::second)->first.c_str();
}

report::BestMetric make_report_metric(BestMetric metric) {
  const bool is_error_rate =
      metric.kind() == BestMetric::kAnswerMetric && evaluation::is_lower_better(metric.answer_metric());
  return {.name = to_string(metric), .is_lower_better = metric == BestMetric::kLoss || is_error_rate};
}

void declare_options(OptionTable& table, EvaluationOptions& options) {
  // Far above useful values, to reject typing errors.
  constexpr int64_t kMaxAnswerTokens = 10'000'000;
  constexpr int64_t kMaxEvalBatchSize = 1'000'000;
  table.add(
      keys::training::kEvalSteps, options.steps,
      {.doc = "Number of steps between evaluations on `data.eval`, which also run at the end of each epoch and of the "
              "run (docs/evaluation.md). `auto`: only at these ends. 0: no evaluation.",
       .resume = ResumeRule::kFree,
       .unit = "steps",
       .hints = {{.names = {"eval_steps", "eval_strategy", "evaluation_strategy", "do_eval", "eval_interval",
                            "load_best_model_at_end", "evals_per_epoch", "val_every_steps", "val_check_interval",
                            "eval_every"},
                  .text = "training.eval_steps, on data.eval; vlmtrain eval --checkpoint evaluates one checkpoint"}}},
      allow_auto(between<int64_t>(0, engine::kMaxSteps)));
  table.add(
      keys::training::kEvalSamples, options.samples,
      {.doc = "Number of samples of `data.eval` to evaluate, spread over the file, the same each time. `auto`: all.",
       .resume = ResumeRule::kFree,
       .unit = "samples"},
      allow_auto(at_least<int64_t>(1)));
  table.add(
      keys::training::kEvalAnswers, options.generate_answers,
      {.doc = "If true, an evaluation also generates answers and reports exact match. `false`: only the loss, which is "
              "faster.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::training::kEvalMaxNewTokens, options.max_new_tokens,
      {.doc = "Maximum number of tokens per answer in an evaluation.", .resume = ResumeRule::kFree, .unit = "tokens"},
      between<int64_t>(1, kMaxAnswerTokens));
  table.add(keys::training::kEvalBatchSize, options.batch_size,
            {.doc = "Number of samples per evaluation batch. `auto`: the most that fit, chosen by the planner.",
             .resume = ResumeRule::kFree,
             .unit = "samples",
             .hints = {{.names = {"per_device_eval_batch_size", "eval_batch_size"},
                        .text = "training.eval_batch_size: auto chooses the most samples that fit"}}},
            allow_auto(between<int64_t>(1, kMaxEvalBatchSize)));
  table.add_enum(
      keys::training::kBestMetric, options.best_metric, get_best_metric_names(),
      {.doc = "Metric that selects the best checkpoint: the lowest loss, the largest share of exact answers, for "
              "models that predict masks the largest Dice, or a metric of `eval.metrics`: the lowest `cer` or `wer`, "
              "the largest of others. Among equal values the lowest loss decides.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::training::kEarlyStoppingPatience, options.early_stopping_patience,
      {.doc = "Number of consecutive evaluations without improvement after which the run ends successfully. 0: never.",
       .resume = ResumeRule::kFree,
       .unit = "evaluations"},
      at_least<int64_t>(0));
  table.set_section_description("eval", "Metrics of the answers in evaluations (docs/evaluation.md).");
  table.add_structured_option(
      keys::eval::kMetrics, "list of names", [&options] { return metrics_to_json(options.metrics.metrics); },
      [&options](const nlohmann::ordered_json& names) { return parse_metrics(names, options.metrics.metrics); },
      {.doc = fmt::format(
           "Metrics that compare the generated answers with the expected ones, in evaluations during training "
           "and in `vlmtrain eval`: {}.",
           join_metric_names()),
       .resume = ResumeRule::kFree});
  table.add(
      keys::eval::kNumericTolerance, options.metrics.numeric_tolerance,
      {.doc =
           "Largest difference of a correct number by the metric `numeric`, relative to the expected number; absolute "
           "if the expected number is 0.",
       .resume = ResumeRule::kFree},
      at_least(0.0));
}

}  // namespace vlmtrain::train
