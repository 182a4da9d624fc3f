#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/evaluation/metrics.h"
#include "vlmtrain/report/progress.h"

namespace vlmtrain::train {

/// The metric that selects the best checkpoint: the loss, the share of exact answers, the Dice
/// coefficient of masks, or a metric of answers.
class BestMetric {
 public:
  enum Kind : uint8_t { kLoss, kExactMatch, kDice, kAnswerMetric };

  // Implicit, because each kind and each metric of answers is a metric: NOLINTBEGIN(google-explicit-constructor)
  /// REQUIRES: `kind` is not kAnswerMetric.
  constexpr BestMetric(Kind kind) : kind_(kind) {}
  constexpr BestMetric(evaluation::Metric metric) : kind_(kAnswerMetric), answer_metric_(metric) {}
  // NOLINTEND(google-explicit-constructor)

  constexpr Kind kind() const { return kind_; }
  /// REQUIRES: kind() is kAnswerMetric.
  constexpr evaluation::Metric answer_metric() const { return answer_metric_; }
  /// Returns whether the metric compares generated answers.
  constexpr bool needs_answers() const { return kind_ == kExactMatch || kind_ == kAnswerMetric; }
  constexpr bool operator==(const BestMetric&) const = default;

 private:
  Kind kind_;
  evaluation::Metric answer_metric_{};
};

/// Returns all metrics with their values of training.best_metric, for example "exact_match".
const std::vector<std::pair<std::string, BestMetric>>& get_best_metric_names();

/// Returns the value of training.best_metric. The pointer stays valid.
const char* to_string(BestMetric metric);

/// Returns the metric for reports, with its direction.
report::BestMetric make_report_metric(BestMetric metric);

}  // namespace vlmtrain::train
