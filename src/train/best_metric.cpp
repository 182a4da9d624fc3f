#include "vlmtrain/train/best_metric.h"

#include <algorithm>

namespace vlmtrain::train {

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

}  // namespace vlmtrain::train
