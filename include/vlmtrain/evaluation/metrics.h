#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::evaluation {

/// The metrics of eval.metrics, which compare a generated answer with the expected one. Adding a
/// metric: a value here, its name in get_metric_names(), and its function in kMetricFunctions
/// (metrics.cpp). docs/how-to/evaluate.md defines them.
enum class Metric : uint8_t {
  kAnls,
  kCer,
  kWer,
  kRelaxedAccuracy,
  kMultipleChoice,
  kNumeric,
  kBoxIou,
  kBoxAccuracy,
};

/// Returns the metrics with their names in eval.metrics and in JSON, in the order of the enum.
inline const std::vector<std::pair<std::string, Metric>>& get_metric_names() {
  static const std::vector<std::pair<std::string, Metric>> names{{"anls", Metric::kAnls},
                                                                 {"cer", Metric::kCer},
                                                                 {"wer", Metric::kWer},
                                                                 {"relaxed_accuracy", Metric::kRelaxedAccuracy},
                                                                 {"multiple_choice", Metric::kMultipleChoice},
                                                                 {"numeric", Metric::kNumeric},
                                                                 {"box_iou", Metric::kBoxIou},
                                                                 {"box_accuracy", Metric::kBoxAccuracy}};
  return names;
}

/// Returns the metric's name, for example "anls". The reference stays valid.
inline const std::string& to_string(Metric metric) {
  return std::ranges::find(get_metric_names(), metric, &std::pair<std::string, Metric>::second)->first;
}

/// Returns whether a lower value is better, as for error rates.
inline bool is_lower_better(Metric metric) {
  return metric == Metric::kCer || metric == Metric::kWer;
}

/// The metrics of an evaluation, and their settings.
struct MetricSettings {
  std::vector<Metric> metrics{};    ///< without repetitions
  double numeric_tolerance = 0.05;  ///< of Metric::kNumeric, relative; absolute if the expected number is 0

  /// Adds the metrics that are not among `metrics`.
  void add(std::initializer_list<Metric> added);
};

/// The weighted sum of a metric over one or more answers. Its value is `sum` / `weight`.
struct MetricSum {
  double sum = 0;
  double weight = 0;  ///< 0 if the metric does not apply to any of the answers

  /// Adds the answers of another sum. Sums of several parts of a data set merge in this way.
  void add(const MetricSum& other) {
    sum += other.sum;
    weight += other.weight;
  }
  /// Returns the value; nullopt if the metric does not apply to any of the answers.
  std::optional<double> value() const { return weight > 0 ? std::optional(sum / weight) : std::nullopt; }
};

using MetricSums = std::map<Metric, MetricSum>;
/// Values by the names of their metrics; nullopt for those that do not apply.
using MetricValues = std::map<std::string, std::optional<double>>;

/// Returns the sums of the metrics of `settings` for one answer. Thread-safe.
MetricSums score_answer_metrics(std::string_view expected, std::string_view prediction, const MetricSettings& settings);

/// Adds each sum of `other` to the sum of the same metric.
void add_metric_sums(MetricSums& sums, const MetricSums& other);

/// Returns the values of the sums.
MetricValues get_metric_values(const MetricSums& sums);

}  // namespace vlmtrain::evaluation
