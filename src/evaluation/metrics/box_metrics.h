#pragma once

#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

// Metrics of the boxes in answers (parse_boxes()). Predicted and expected boxes are matched one to
// one, in descending order of IoU; an expected box without a match counts as IoU 0, and additional
// predicted boxes are ignored. With one box each, as in lmms-eval's RefCOCO (compute_iou and
// ACC@0.5 in tasks/refcoco/utils_rec.py). Do not apply to an expected answer without boxes.

/// Returns the IoU of all expected boxes; the value is their mean.
MetricSum score_box_iou(std::string_view expected, std::string_view prediction);

/// Returns the number of expected boxes whose match has an IoU of at least 0.5; the value is their
/// fraction.
MetricSum score_box_accuracy(std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation
