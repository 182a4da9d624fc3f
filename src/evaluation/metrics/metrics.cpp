#include "vlmtrain/evaluation/metrics.h"

#include <algorithm>

#include "evaluation/metrics/boxes.h"
#include "evaluation/metrics/text_metrics.h"

namespace vlmtrain::evaluation {

namespace {

/// Returns the sum for one answer.
using MetricFunction = MetricSum (*)(std::string_view expected, std::string_view prediction,
                                     const MetricSettings& settings);

template <MetricSum (*kFunction)(std::string_view, std::string_view)>
MetricSum ignore_settings(std::string_view expected, std::string_view prediction, const MetricSettings& /*settings*/) {
  return kFunction(expected, prediction);
}

/// The functions in the order of Metric.
constexpr MetricFunction kMetricFunctions[]{
    ignore_settings<score_anls>,
    ignore_settings<score_characters>,
    ignore_settings<score_words>,
    ignore_settings<score_relaxed_accuracy>,
    ignore_settings<score_multiple_choice>,
    [](std::string_view expected, std::string_view prediction, const MetricSettings& settings) {
      return score_number(expected, prediction, settings.numeric_tolerance);
    },
    ignore_settings<score_box_iou>,
    ignore_settings<score_box_accuracy>,
};
static_assert(std::size(kMetricFunctions) == static_cast<size_t>(Metric::kBoxAccuracy) + 1, "one for each metric");

}  // namespace

void MetricSettings::add(std::initializer_list<Metric> added) {
  for (const Metric metric : added) {
    if (std::ranges::find(metrics, metric) == metrics.end()) metrics.push_back(metric);
  }
}

MetricSums score_answer_metrics(std::string_view expected, std::string_view prediction,
                                const MetricSettings& settings) {
  MetricSums sums;
  for (const Metric metric : settings.metrics)
    sums[metric] = kMetricFunctions[static_cast<size_t>(metric)](expected, prediction, settings);
  return sums;
}

void add_metric_sums(MetricSums& sums, const MetricSums& other) {
  for (const auto& [metric, sum] : other) sums[metric].add(sum);
}

MetricValues get_metric_values(const MetricSums& sums) {
  MetricValues values;
  for (const auto& [metric, sum] : sums) values[to_string(metric)] = sum.value();
  return values;
}

}  // namespace vlmtrain::evaluation
