#include <algorithm>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

const std::vector<std::pair<std::string, Metric>>& get_metric_names() {
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

const std::string& to_string(Metric metric) {
  return std::ranges::find(get_metric_names(), metric, &std::pair<std::string, Metric>::second)->first;
}

bool is_lower_better(Metric metric) {
  return metric == Metric::kCer || metric == Metric::kWer;
}

}  // namespace vlmtrain::evaluation
